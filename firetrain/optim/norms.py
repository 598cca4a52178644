"""Norms of parameters and of tensors of their shapes, which a placement replaces if ranks hold parts of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Norms = Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]


def norms_of(parameters: Sequence[Tensor], tensors: Sequence[Tensor]) -> Tensor:
    """The norm of each of `tensors`, each of which belongs to the parameter at the same place; a vector."""
    return torch.stack(torch._foreach_norm(list(tensors)))
