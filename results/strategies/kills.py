"""Writes kills.json: runs under random strategies, in which a random rank is killed at a random time.

In every third run the time counts from the start of the ranks, so that some are killed before they are connected; in the others
from the first step. Each epoch of twelve steps ends with an evaluation and a checkpoint, so that some are killed there. Each run
must end by itself within a minute, name the rank, and leave no process behind; otherwise the script stops with an error.
Usage: python results/strategies/kills.py [RUNS]
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from launched import LONG, Launch, wait_for  # noqa: E402

CASES = (
    ("data-parallel", 3), ("one-weird-trick", 2), ("one-weird-trick", 4), ("one-weird-trick:replicas=2", 4),
    ("tensor-parallel:split=outputs", 3),
    ("tensor-parallel:split=inputs", 2), ("tensor-parallel:split=alternate", 4), ("grid:images=2,outputs=2", 4), ("pipeline", 3),
    ("pipeline:stages=2,micro_batches=4,schedule=1f1b", 4), ("pipeline:stages=2,micro_batches=4", 2), ("branch-parallel", 2),
)  # fmt: skip
OPTIONS = (
    "--set", "cluster.timeout_s=30", "--set", "log.every_steps=1", "--set", "checkpoint.every_epochs=1",
    *LONG,
)  # fmt: skip
LATEST_S, LIMIT_S = 4.0, 60


def main(runs: int) -> None:
    """Kill a rank in each of `runs` runs."""
    draw, found = random.Random(1), list[dict[str, Any]]()
    for number in range(runs):
        strategy, ranks = draw.choice(CASES)
        moment = draw.randrange(ranks), number % 3 > 0, LATEST_S * draw.random()
        found.append(killed(strategy, ranks, *moment))
        print(number, found[-1], flush=True)
    (HERE / "kills.json").write_text(json.dumps(found, indent=1) + "\n")
    print(f"{runs} kills, none hangs; the slowest end took {max(one['end_s'] for one in found):.1f} s")


def killed(strategy: str, ranks: int, rank: int, in_training: bool, after_s: float) -> dict[str, Any]:
    """Start a run, kill a rank some seconds after the start or the first step, and wait until all processes are gone."""
    model = "squeezenet_mini" if strategy == "branch-parallel" else "lenet"
    with tempfile.TemporaryDirectory() as folder:
        chosen = ("--set", f"strategy.name={strategy}", "--set", f"model.name={model}")
        run = Launch(Path(folder), "--ranks-per-node", str(ranks), *chosen, *OPTIONS)
        try:
            wait_for(lambda: len(run.ranks()) == ranks, "all ranks have started", LIMIT_S)
            if in_training:
                wait_for(lambda: _lines(folder) > 0, "a step is recorded", LIMIT_S)
            time.sleep(after_s)  # the random moment of the kill
            os.kill(run.ranks()[rank], signal.SIGKILL)
            code, out, end_s = run.end(LIMIT_S)
            assert code == 1 and f"rank {rank} failed first" in out, out
            wait_for(lambda: not run.ranks(), "all ranks are gone", LIMIT_S)
        finally:
            run.kill()
        lines = _lines(folder)
    return {
        "strategy": strategy, "ranks": ranks, "rank": rank, "from_first_step": in_training, "after_s": round(after_s, 2),
        "lines": lines, "end_s": round(end_s, 2),
    }  # fmt: skip


def _lines(folder: str) -> int:
    """The number of records of steps, and of other events, that a run has made."""
    return sum(1 for path in Path(folder).glob("results/*/metrics.jsonl") for _ in path.open())


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
