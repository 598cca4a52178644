"""Ranks that are lost under one strategy after another are named, all ranks end, and the run goes on to its target."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from launched import Launch, wait_for

from firetrain.records import Run

OPTIONS = (
    "--ranks-per-node", "4", "--set", "target.max_epochs=30", "--set", "target.top1=0.9", "--set", "checkpoint.every_steps=3",
    "--set", "log.every_steps=1", "--set", "cluster.timeout_s=20",
)  # fmt: skip


def kill_after_a_checkpoint(running: Launch, rank: int) -> None:
    """Kill a rank as soon as there is a checkpoint that was not there before."""
    before, ended = newest_step(running.folder), running.process.poll
    wait_for(lambda: newest_step(running.folder) > before or ended() is not None, f"a checkpoint after step {before}")
    assert ended() is None, running.process.communicate()[0]
    os.kill(running.ranks()[rank], signal.SIGKILL)


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint; 0 if there is none."""
    names = (path.name for path in folder.glob("results/*/checkpoints/step-*.pt"))
    return max((int(name.split("-")[1]) for name in names), default=0)


@pytest.mark.parametrize(
    ("model", "batch", "lost", "last"),
    [
        (
            "lenet", 16,  # an epoch has 90 steps, so that the first evaluation comes after the last kill
            {"one-weird-trick": 2, "pipeline:stages=4,schedule=1f1b,micro_batches=4": 3, "tensor-parallel:split=inputs": 0,
             "grid:images=2,outputs=2": 1},
            "one-weird-trick:replicas=2",
        ),
        (
            "lenet", 16,
            {"data-parallel": 0, "tensor-parallel:split=outputs": 1, "pipeline:stages=2,replicas=2,micro_batches=2": 2,
             "tensor-parallel:split=alternate": 3},
            "pipeline:stages=2,micro_batches=2",
        ),
        ("squeezenet_mini", 16, {"branch-parallel:replicas=2": 2}, "data-parallel"),
    ],
)  # fmt: skip
def test_lost_ranks_are_named_and_another_strategy_reaches_the_target(
    launch: Callable[..., Launch], model: str, batch: int, lost: dict[str, int], last: str
) -> None:
    arguments = [*OPTIONS, "--set", f"model.name={model}", "--set", f"batch.global_size={batch}"]
    for strategy, rank in lost.items():
        running = launch(*arguments, "--set", f"strategy.name={strategy}")
        kill_after_a_checkpoint(running, rank)
        code, out, _ = running.end(60)
        assert code == 1 and f"rank {rank} failed first: killed by signal 9 (SIGKILL)" in out, out
        assert not running.ranks()
        arguments = ["--resume", str(running.run)]
    code, out, _ = launch(*arguments, "--set", f"strategy.name={last}", "--set", "reduction.name=tree").end(150)
    run = Run.open(running.run)
    assert code == 0 and run.summary()["top1"] >= 0.9 and run.summary()["attempts"] == len(lost) + 1, out
    assert str(run.config().strategy.spec) == last
    assert run.facts()["arm"].endswith(f"resumed with strategy.name={last} reduction.name=tree")
