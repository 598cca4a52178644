"""Local response normalisation is torch's, in both passes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from firetrain.models.local_response_norm import LocalResponseNorm


@pytest.mark.parametrize("channels", [1, 3, 64])
@pytest.mark.parametrize("size", [3, 4, 5])
def test_outputs_and_gradients_are_those_of_torch(channels: int, size: int) -> None:
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
    assert not torch.allclose(found[0][0], x, rtol=1e-3)
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)
