"""Weights that are zero or share a value go on doing so, and otherwise move as a reference does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from firetrain.config import load_config
from firetrain.optim.catalogue import make_optimizer, set_rate
from firetrain.optim.kept_weights import keep_weights


def linear(values: torch.Tensor) -> nn.Linear:
    model = nn.Linear(values.shape[1], values.shape[0])
    with torch.no_grad():
        model.weight.copy_(values)
    return model


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int = 5) -> None:
    draw = torch.Generator().manual_seed(3)
    for _ in range(count):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=draw)
        optimizer.step()


@pytest.mark.parametrize("name", ["sgd", "lars", "lamb"])
def test_zeros_stay_zero_under_every_optimiser_and_the_others_move(name: str) -> None:
    values = torch.randn(6, 9, generator=torch.Generator().manual_seed(1))
    values[values.abs() < 0.7] = 0.0
    config = load_config("squeezenet-digits", [f"optimizer.name={name}"]).config
    model = linear(values)
    optimizer = make_optimizer(model, config)
    set_rate(optimizer, 0.1)
    keep_weights(optimizer, "zeros")
    steps(model, optimizer)
    assert ((model.weight == 0) == (values == 0)).all() and (model.weight != values)[values != 0].all()
    assert (model.bias != 0).all(), "biases are not pruned"


def test_what_is_kept_is_that_of_the_first_step_as_after_a_checkpoint_was_loaded() -> None:
    values = torch.ones(4, 5)
    model, pruned = linear(values), torch.arange(20).view(4, 5) % 3 == 0
    optimizer = torch.optim.SGD([model.weight], lr=0.1, momentum=0.9)
    keep_weights(optimizer, "zeros")
    with torch.no_grad():
        model.weight.copy_(torch.where(pruned, 0.0, 1.0))
    steps(model, optimizer)
    assert ((model.weight == 0) == pruned).all()


def test_a_shared_value_moves_by_the_sum_of_its_weights_gradients() -> None:
    """Beside a model whose parameters are the values themselves, in float64."""
    codes = torch.tensor([[0, 1, 2, 1], [3, 3, 0, 2]])
    values = torch.tensor([0.0, 0.5, -1.0, 2.0], dtype=torch.float64)
    model = linear(values[codes]).double()
    optimizer = torch.optim.SGD([model.weight], lr=0.05, momentum=0.9, weight_decay=0.01)
    keep_weights(optimizer, "values")
    reference = nn.Parameter(values[1:].clone())
    theirs = torch.optim.SGD([reference], lr=0.05, momentum=0.9, weight_decay=0.01)
    draw = torch.Generator().manual_seed(2)
    for _ in range(6):
        gradient = torch.randn(2, 4, generator=draw, dtype=torch.float64)
        model.weight.grad = gradient.clone()
        reference.grad = torch.stack([gradient[codes == code].sum() for code in (1, 2, 3)])
        optimizer.step()
        theirs.step()
    expected = torch.cat([torch.zeros(1, dtype=torch.float64), reference.detach()])[codes]
    torch.testing.assert_close(model.weight.detach(), expected, rtol=1e-12, atol=1e-12)
    assert len(model.weight.unique()) == 4


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_filters_share_their_values_bit_for_bit_in_either_layout(layout: torch.memory_format) -> None:
    draw = torch.Generator().manual_seed(1)
    filters = nn.Conv2d(8, 16, 3)
    with torch.no_grad():
        filters.weight.copy_(torch.randint(-3, 4, filters.weight.shape, generator=draw) / 7)
    filters = filters.to(memory_format=layout)  # type: ignore[call-overload]
    before = filters.weight.detach().clone()
    config = load_config("squeezenet-digits").config
    optimizer = make_optimizer(filters, config)
    set_rate(optimizer, 0.01)
    keep_weights(optimizer, "values")
    steps(filters, optimizer, 3)
    assert len(filters.weight.unique()) == 7 and (filters.weight[before == 0] == 0).all()
    for value in before.unique():
        assert len(filters.weight[before == value].unique()) == 1


def test_a_tensor_that_was_not_quantised_keeps_its_zeros_only() -> None:
    values = torch.randn(40, 40, generator=torch.Generator().manual_seed(1))
    values[0] = 0.0
    model = linear(values)
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    keep_weights(optimizer, "values")
    steps(model, optimizer, 1)
    assert (model.weight[0] == 0).all() and len(model.weight.unique()) > 1000
