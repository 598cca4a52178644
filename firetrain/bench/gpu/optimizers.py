"""Compares optimiser steps on the device with the same steps on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from firetrain.config import load_config
from firetrain.errors import FiretrainError
from firetrain.optim.catalogue import make_optimizer, set_rate

_STEPS, _MOST = 4, 1e-5
_SHAPES = ((64, 3, 7, 7), (64,), (128, 64, 1, 1), (1000, 512), (1000,))


def verify(device: torch.device) -> Iterator[tuple[str, Any]]:
    """For each optimiser: the largest difference of a weight after some steps, relative to the largest weight."""
    for name in ("sgd", "lars", "lamb"):
        theirs, ours = _steps(name, torch.device("cpu")), _steps(name, device)
        difference = max(float((a - b.cpu()).abs().max() / a.abs().max()) for a, b in zip(theirs, ours, strict=True))
        yield name, difference
        if not difference < _MOST:
            raise FiretrainError(f"{name}: weights differ by {difference:.1e} of the largest")


def _steps(name: str, device: torch.device) -> list[Tensor]:
    config = load_config("squeezenet-digits", [f"optimizer.name={name}"]).config
    draws = torch.Generator().manual_seed(1)
    model = nn.ParameterList([nn.Parameter(torch.randn(shape, generator=draws).to(device)) for shape in _SHAPES])
    optimizer = make_optimizer(model, config)
    set_rate(optimizer, 0.1)
    for _ in range(_STEPS):
        for parameter in model:
            parameter.grad = torch.randn(parameter.shape, generator=draws).to(device)
        optimizer.step()
    return [parameter.detach() for parameter in model]
