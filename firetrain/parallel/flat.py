"""All parameters of a model, or all of their gradients, in one vector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn


def flat(model: nn.Module) -> Tensor:
    """All parameters of a model in one vector, in the order in which they are in memory; they become views of it."""
    found = flat_copy(model)
    for parameter, part in parts(list(model.parameters()), found):
        parameter.data = part
    return found


def flat_copy(model: nn.Module) -> Tensor:
    """A copy of all parameters of a model, in the order of `flat`."""
    return joined([parameter.detach() for parameter in model.parameters()], list(model.parameters()))


def load_flat(model: nn.Module, weights: Tensor) -> None:
    """Copy all parameters from a vector in the order of `flat`; they stay where they are in memory."""
    with torch.no_grad():
        for parameter, part in parts(list(model.parameters()), weights):
            parameter.copy_(part)


def flat_gradient(model: nn.Module) -> Tensor:
    """All gradients of a model in a new vector, in the order of `flat`; zeros for parameters without one."""
    parameters = list(model.parameters())
    return joined([torch.zeros_like(one) if one.grad is None else one.grad for one in parameters], parameters)


def joined(values: Sequence[Tensor], like: Sequence[Tensor]) -> Tensor:
    """Tensors in one new vector, each in the order in which the tensor of `like` is in memory (channels_last, for instance)."""
    return torch.cat([_in_memory(value, one) for value, one in zip(values, like, strict=True)])


def parts(parameters: Sequence[Tensor], whole: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Each parameter, with its part of a vector in its own shape and strides."""
    offset = 0
    for parameter in parameters:
        yield parameter, whole.as_strided(parameter.shape, parameter.stride(), whole.storage_offset() + offset)
        offset += parameter.numel()


def _in_memory(values: Tensor, like: Tensor) -> Tensor:
    """The values in one dimension, as a tensor with the strides of `like` has them in memory."""
    return torch.empty_like(like).copy_(values).as_strided((like.numel(),), (1,))
