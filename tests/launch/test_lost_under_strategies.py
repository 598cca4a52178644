"""A rank that is lost under a strategy is named, all ranks end, and the run goes on under another strategy to its target."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from launched import Launch, wait_for

from firetrain.records import Run

OPTIONS = (
    "--ranks-per-node", "4", "--set", "target.max_epochs=30", "--set", "target.top1=0.9", "--set", "checkpoint.every_steps=5",
    "--set", "log.every_steps=1", "--set", "cluster.timeout_s=20",
)  # fmt: skip


@pytest.mark.parametrize(
    ("model", "strategy", "lost", "then"),
    [
        ("lenet", "one-weird-trick", 2, "pipeline:stages=2,micro_batches=2"),
        ("lenet", "pipeline:stages=4,schedule=1f1b,micro_batches=4", 3, "data-parallel"),
        ("lenet", "tensor-parallel:split=inputs", 0, "grid:images=2,outputs=2"),
        ("lenet", "grid:images=2,outputs=2", 1, "one-weird-trick:replicas=2"),
        ("squeezenet_mini", "branch-parallel:replicas=2", 2, "data-parallel"),
    ],
)
def test_a_lost_rank_is_named_and_another_strategy_reaches_the_target(
    launch: Callable[..., Launch], model: str, strategy: str, lost: int, then: str
) -> None:
    first = launch(*OPTIONS, "--set", f"model.name={model}", "--set", f"strategy.name={strategy}")
    wait_for(lambda: list(first.folder.glob("results/*/checkpoints/step-*.pt")), "a checkpoint")
    os.kill(first.ranks()[lost], signal.SIGKILL)
    code, out, _ = first.end(60)
    assert code == 1 and f"rank {lost} failed first: killed by signal 9 (SIGKILL)" in out, out
    assert not first.ranks()
    second = launch("--resume", str(first.run), "--set", f"strategy.name={then}", "--set", "reduction.name=tree")
    code, out, _ = second.end(150)
    run = Run.open(first.run)
    assert code == 0 and run.summary()["top1"] >= 0.9, out
    assert str(run.config().strategy.spec) == then
    assert run.facts()["arm"] == f"resumed with strategy.name={then} reduction.name=tree"
