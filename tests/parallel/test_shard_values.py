"""Weights that share values go on sharing them where ranks hold shards of them, and move as in one process."""

from __future__ import annotations

import pytest
import torch
from exact import Placed, apart, whole_losses
from ranks import on_ranks
from torch import nn

from firetrain.config import load_config
from firetrain.optim.catalogue import Shards, make_optimizer, set_rate
from firetrain.parallel.shard_norms import ShardNorms
from firetrain.parallel.shard_values import ShardValues
from firetrain.transport.transport import Transport

MODEL = "lenet+shared"
STEPS = 6


def trained(transport: Transport, strategy: str) -> tuple[list[float], dict[str, set[float]]]:
    """The losses of some steps, and the values that this rank's shards have then."""
    placed = Placed(transport, MODEL, strategy)
    losses = placed.losses(STEPS)
    return losses, {name: set(one.flatten().tolist()) for name, one in placed.mine.named_parameters()}


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [("one-weird-trick:replicas=2", 4), ("tensor-parallel:split=outputs", 3), ("tensor-parallel:split=inputs", 2),
     ("grid:images=2,outputs=2", 4), ("pipeline:micro_batches=3", 4)],
)  # fmt: skip
def test_shared_values_move_under_every_strategy_as_in_one_process(strategy: str, ranks: int) -> None:
    found = on_ranks(ranks, trained, strategy)
    truth = whole_losses(MODEL, STEPS)
    assert max(apart(losses, truth) for losses, _ in found) < 1e-12
    assert truth[-1] < truth[1], "it has learned"
    for name in ("conv1", "conv2", "fc1", "fc2"):
        values = set().union(*(held.get(f"{name}.weight", set()) for _, held in found))
        assert 2 < len(values) <= 11, (name, len(values))


def beside_a_norm(transport: Transport) -> list[float]:
    """The weights of rank 0 after two steps with LARS; rank 1 has a layer of batch norm only, which gets no norms."""
    model = nn.Linear(3, 2, bias=False) if transport.rank == 0 else nn.BatchNorm1d(2)
    first = 2 * transport.rank
    own = {id(parameter): first + number for number, parameter in enumerate(model.parameters())}
    shards = own, dict.fromkeys(own, 1), 4
    norms = ShardNorms(transport, *shards, calls=2)
    config = load_config("squeezenet-digits", ["optimizer.name=lars", "model.weights=m.pt", "model.keep=values"]).config
    optimizer = make_optimizer(model, config, Shards(norms, norms.end, ShardValues(transport, *shards)))
    set_rate(optimizer, 0.5)
    if transport.rank == 0:
        model.weight.data.copy_(torch.tensor([[1.0, 0.0, 2.0], [2.0, 1.0, 0.0]]))
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.arange(1.0, 1.0 + parameter.numel()).view_as(parameter)
        optimizer.step()
    return [] if transport.rank else model.weight.flatten().tolist()


def test_a_rank_without_weights_that_have_norms_sums_in_the_order_of_the_others() -> None:
    (a, zero, b, c, d, also_zero), _ = on_ranks(2, beside_a_norm)
    assert a == d != 1.0 and b == c != 2.0 and zero == also_zero == 0.0
