"""Estimate the time of a comparison from earlier runs of the same configs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from firetrain.config.files import exists, is_folder
from firetrain.errors import FiretrainError
from firetrain.launch.trials import Allocation
from firetrain.records import Run


def estimate_s(allocations: Sequence[Allocation], results: Path) -> tuple[float, int] | None:
    """(estimated seconds of all unfinished trials, number of earlier runs used); None if unknown.

    The time of a step is taken from the run of the same config, in `results` or below, whose world size is nearest.
    """
    if not is_folder(results):
        return None
    known: dict[str, list[tuple[int, float]]] = {}
    for path in [*results.glob("*/summary.json"), *results.glob("comparisons/*/*/trials/*/summary.json")]:
        with suppress(FiretrainError, KeyError, ZeroDivisionError, OSError):
            run = Run(path.parent)
            facts = run.summary()
            known.setdefault(run.config().name, []).append((facts["world_size"], facts["elapsed_s"] / facts["steps"]))
    total_s, used = 0.0, 0
    for allocation in allocations:
        for trial in allocation.trials:
            if exists(trial.path / "summary.json"):
                continue
            if trial.loaded is None:
                return None
            seen = known.get(trial.loaded.config.name)
            steps = trial.loaded.config.target.max_steps
            if not seen or not steps:
                return None
            total_s += steps * min(seen, key=lambda pair: abs(pair[0] - allocation.world.size))[1]
            used = max(used, len(seen))
    return total_s, used
