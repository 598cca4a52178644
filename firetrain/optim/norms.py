"""Norms of parameters, or of tensors shaped like them; a placement supplies its own version."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Norms = Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]


def norms_of(parameters: Sequence[Tensor], tensors: Sequence[Tensor]) -> Tensor:
    """A vector: element i is the norm of `tensors[i]`, which belongs to `parameters[i]`."""
    return torch.stack(torch._foreach_norm(list(tensors)))
