"""The memory of a step is what autograd and the optimiser really keep."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from firetrain.config import load_config
from firetrain.models.catalogue import MODELS, model_by_name
from firetrain.models.memory import memory
from firetrain.optim.catalogue import make_optimizer


def kept_bytes(model: nn.Module, images: Tensor) -> int:
    """Bytes of the different tensors that a forward pass keeps for the backward pass, without the parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = model(images)
    del outputs
    return sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in own)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_activations_are_those_that_a_real_forward_pass_keeps(name: str) -> None:
    size = 28 if name.startswith("lenet") else 96
    predicted = memory(model_by_name(name), size, batch=3).activations
    found = kept_bytes(model_by_name(name).train(), torch.rand(3, 3, size, size))
    assert predicted == pytest.approx(found, rel=0.15) and found > 1e4


@pytest.mark.parametrize("optimizer", ["sgd", "lars", "lamb"])
def test_the_optimiser_keeps_as_many_tensors(optimizer: str) -> None:
    config = load_config("squeezenet-digits", [f"optimizer.name={optimizer}"]).config
    model = model_by_name("lenet", classes=10)
    made = make_optimizer(model, config)
    sum(parameter.sum() for parameter in model.parameters()).backward()
    made.step()
    kept = sum(
        value.numel() * 4
        for state in made.state.values()
        for value in state.values()
        if isinstance(value, Tensor) and value.dim()
    )
    found = memory(model, 28, 1, optimizer)
    assert found.optimizer == kept > 0
    assert found.parameters == found.gradients == sum(p.numel() * 4 for p in model.parameters())
