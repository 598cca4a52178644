"""The memory that training needs: parameters, gradients, the state of the optimiser, and activations kept for backward."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# tensors of each parameter's size that an optimiser keeps
_STATES = {"sgd": 1, "lars": 1, "lamb": 2}


@dataclass(frozen=True)
class Memory:
    """Bytes of one training step in float32."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """All of them together, in bytes."""
        return self.parameters + self.gradients + self.optimizer + self.activations


def memory(model: nn.Module, image_size: int, batch: int, optimizer: str = "sgd") -> Memory:
    """The memory of a step on `batch` images. Nothing is computed: torch traces the shapes on the meta device.

    Activations are all tensors that autograd keeps for the backward pass, each counted once, without the parameters.
    """
    model = copy.deepcopy(model).to("meta").train()
    sizes = [parameter.numel() * parameter.element_size() for parameter in model.parameters()]
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = model(torch.empty(batch, 3, image_size, image_size, device="meta"))
    activations = sum(tensor.untyped_storage().nbytes() for storage, tensor in kept.items() if storage not in own)
    del outputs
    return Memory(sum(sizes), sum(sizes), _STATES[optimizer] * sum(sizes), activations)
