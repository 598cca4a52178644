"""Shards of a model do together what one server does alone, for every optimiser and for averages."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from firetrain.config import load_config
from firetrain.optim.catalogue import make_optimizer
from firetrain.parallel.flat import flat_copy
from firetrain.parallel.shard import AveragedShard, Order, Update, UpdatedShard, shard_bounds

ORDERS = (
    Order(1.0, None, ()),
    Order(0.5, Update(images=12.0, rate=0.1), (0, 1)),
    Order(0.0, None, (1,)),  # dropped
    Order(1.0, Update(images=4.0, rate=0.05), (0,)),
)


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5)).to(
        memory_format=torch.channels_last
    )


def optimizer_of(net: nn.Module, name: str) -> torch.optim.Optimizer:
    config = load_config(
        "squeezenet-digits", [f"optimizer.name={name}", "optimizer.weight_decay=0.01", "force=true"]
    ).config
    return make_optimizer(net, config)


def values(count: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(2)
    return [torch.randn(count, generator=draw) for _ in ORDERS]


@settings(max_examples=300, deadline=None)
@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=20), count=st.integers(1, 5))
def test_shards_are_whole_parameters_one_after_another(sizes: list[int], count: int) -> None:
    bounds = shard_bounds(sizes, count)
    ends = {sum(sizes[:number]) for number in range(len(sizes) + 1)}
    assert len(bounds) == count and bounds[0][0] == 0 and bounds[-1][1] == sum(sizes)
    assert all(end == first for (_, end), (first, _) in zip(bounds, bounds[1:], strict=False))
    assert {number for pair in bounds for number in pair} <= ends
    # no cut is farther from its ideal place than half of the parameter that lies there
    for number, (first, _) in enumerate(bounds):
        assert abs(first - sum(sizes) * number / count) <= max(sizes) / 2


@pytest.mark.parametrize("name", ["sgd", "lars", "lamb"])
@pytest.mark.parametrize("count", [2, 3])
def test_shards_update_as_one_server_would(name: str, count: int) -> None:
    """Every weight, and the state of the optimiser that rank 0 collects for a checkpoint, bit for bit."""
    net = model()
    given_values = values(flat_copy(net).numel())
    alone_optimizer = optimizer_of(net, name)
    alone = UpdatedShard(net, alone_optimizer)
    nets = [model() for _ in range(count)]
    optimizers = [optimizer_of(one, name) for one in nets]
    shards = [UpdatedShard(one, optimizers[number], number, count) for number, one in enumerate(nets)]
    for order, whole in zip(ORDERS, given_values, strict=True):
        alone.take(order, whole)
        for shard in shards:
            first, end = shard.bounds
            shard.take(order, whole[first:end])
    assert torch.equal(torch.cat([shard.weights for shard in shards]), alone.weights)
    assert not torch.equal(alone.weights, flat_copy(model()))
    for shard in shards[1:]:
        for key, held in shard.optimizer_state().items():
            shards[0].keep_optimizer_state(key, shard.bounds, held)
    found, expected = (optimizer.state_dict()["state"] for optimizer in (optimizers[0], alone_optimizer))
    assert found.keys() == expected.keys() and expected
    for number, state in expected.items():
        for key, value in state.items():
            assert torch.equal(found[number][key], value), f"{key} of parameter {number}"


def test_an_average_is_weighted_by_images_and_nothing_changes_before() -> None:
    net = model()
    shard, before = AveragedShard(net), flat_copy(net)
    one, two = (torch.full_like(before, value) for value in (1.0, 4.0))
    shard.take(Order(3.0, None, ()), one)
    assert torch.equal(shard.weights, before)
    shard.take(Order(1.0, Update(images=4.0, rate=0.0), (0, 1)), two)
    assert torch.equal(shard.weights, torch.full_like(before, 1.75))
    assert all(bool((parameter == 1.75).all()) for parameter in net.parameters())


def test_an_average_of_nobody_s_images_keeps_the_weights() -> None:
    net = model()
    shard, before = AveragedShard(net), flat_copy(net)
    shard.take(Order(0.0, Update(images=0.0, rate=0.0), (0,)), torch.zeros_like(before))
    assert torch.equal(shard.weights, before)
