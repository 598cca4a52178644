"""Weights that share values go on sharing them where ranks hold shards of them, and move as in one process."""

from __future__ import annotations

import pytest
from exact import Placed, apart, whole_losses
from ranks import on_ranks

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
