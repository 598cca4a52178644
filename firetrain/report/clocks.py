"""Time-to-accuracy by the clocks that are in use, all from the same record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from firetrain.report.history import History, Row

# MLPerf Training's allowance for initialisation, closed division
_MLPERF_FREE_S = 30 * 60


@dataclass(frozen=True)
class Clock:
    """A name, what it counts in one sentence, and the seconds of a run that reached its target."""

    name: str
    definition: str
    _reading: Callable[[History, Row], float | None]

    def seconds(self, history: History) -> float | None:
        """None for a run that did not reach its target, or that this clock does not fit."""
        hit = history.hit
        return None if hit is None else self._reading(history, hit)


def _mlperf(history: History, hit: Row) -> float:
    return float(hit["elapsed_s"]) + max(0.0, _total(hit, "startup_s") - _MLPERF_FREE_S)


def _dawnbench(history: History, hit: Row) -> float:
    return float(
        _total(hit, "startup_s") + hit["elapsed_s"] - _total(hit, "evaluation_s") - _total(hit, "checkpoint_s")
    )


def _algoperf(history: History, hit: Row) -> float:
    return float(max(0.0, hit["train_s"] - _total(hit, "lost_s")))


def _airbench(history: History, hit: Row) -> float | None:
    """The first logged line stands for the warm-up: its steps count at the others' mean."""
    first, last = history.first_step, history.evaluations[-1]
    if first is None or not history.summary or last["step"] <= first["step"]:
        return None
    warm_s = _algoperf(history, last) - first["step_s"] * first["step"]
    return float(warm_s * last["step"] / (last["step"] - first["step"]))


def _wall(history: History, hit: Row) -> float:
    return float(_total(hit, "queue_s") + _total(hit, "startup_s") + hit["elapsed_s"])


CLOCKS = {
    clock.name: clock
    for clock in (
        Clock(
            "mlperf",
            "from before the data is touched to the evaluation that met the target: evaluations, checkpoints, starting again and "
            "steps done again are in it, starting processes (up to 30 minutes) and queueing are not (MLPerf Training)",
            _mlperf,
        ),
        Clock(
            "dawnbench",
            "from the program's start to the same moment, without evaluations and checkpoints (DAWNBench)",
            _dawnbench,
        ),
        Clock(
            "algoperf",
            "steps alone, from the first one on, up to that evaluation; steps that had to be done again count once (AlgoPerf)",
            _algoperf,
        ),
        Clock(
            "airbench",
            "steps alone, to the end of the schedule, the first logged ones at the speed of the others as if after a warm-up "
            "run (airbench)",
            _airbench,
        ),
        Clock("wall", "from submitting to that evaluation, everything in it, the queue too", _wall),
    )
}


def _total(row: Row, part: str) -> float:
    return float(row.get(f"total_{part}", 0.0))
