"""Local response normalisation has the bits of torch's, in both passes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from firetrain.models.local_response_norm import LocalResponseNorm


@pytest.mark.parametrize("channels", [1, 3, 64])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_outputs_and_gradients_have_the_bits_of_torch_s(channels: int, size: int) -> None:
    draws = torch.Generator().manual_seed(channels)
    x = (10 * torch.randn(3, channels, 7, 6, generator=draws)).contiguous(memory_format=torch.channels_last)
    weights = torch.randn(x.shape, generator=draws)
    found = []
    for norm in (LocalResponseNorm(size, 1e-2, 0.75), nn.LocalResponseNorm(size, 1e-2, 0.75)):
        given = x.clone().requires_grad_()
        outputs = norm(given)
        (outputs * weights).sum().backward()
        assert given.grad is not None
        found.append((outputs.detach(), given.grad))
    assert torch.equal(found[0][0], found[1][0]) and not torch.equal(found[0][0], x)
    assert torch.equal(found[0][1], found[1][1])
