"""The rules by which time-to-accuracy is measured, applied to recorded runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from firetrain.records.parts import CHECKPOINT, EVALUATION, LOST, QUEUE, STARTUP, Part
from firetrain.report.history import History, Row

# MLPerf Training's allowance for initialisation, closed division
_MLPERF_FREE_S = 30 * 60


@dataclass(frozen=True)
class ClockRule:
    """A rule for time-to-accuracy: its name, its definition, and a function for the seconds of a run."""

    name: str
    definition: str
    _reading: Callable[[History, Row], float | None]

    def seconds(self, history: History) -> float | None:
        """The seconds of a run; None if it did not reach its target, or the rule does not apply to it."""
        hit = history.hit
        return None if hit is None else self._reading(history, hit)


def _mlperf(history: History, hit: Row) -> float:
    return float(hit["elapsed_s"]) + max(0.0, _total(hit, STARTUP) - _MLPERF_FREE_S)


def _dawnbench(history: History, hit: Row) -> float:
    return float(_total(hit, STARTUP) + hit["elapsed_s"] - _total(hit, EVALUATION) - _total(hit, CHECKPOINT))


def _algoperf(history: History, hit: Row) -> float:
    return float(max(0.0, hit["train_s"] - _total(hit, LOST)))


def _airbench(history: History, hit: Row) -> float | None:
    """Replace the first logged steps, which include warm-up, by the mean of the others."""
    first, last = history.first_step, history.evaluations[-1]
    if first is None or "step_s" not in first or not history.summary or last["step"] <= first["step"]:
        return None
    warm_s = _algoperf(history, last) - first["step_s"] * first["step"]
    return float(warm_s * last["step"] / (last["step"] - first["step"]))


def _wall(history: History, hit: Row) -> float:
    return float(_total(hit, QUEUE) + _total(hit, STARTUP) + hit["elapsed_s"])


CLOCKS = {
    clock.name: clock
    for clock in (
        ClockRule(
            "mlperf",
            "from the first data access to the evaluation that met the target; includes evaluation, checkpoints, restarts and "
            "repeated steps; excludes start-up (up to 30 minutes) and queueing (MLPerf Training)",
            _mlperf,
        ),
        ClockRule(
            "dawnbench",
            "from the program's start to the same evaluation; excludes evaluation and checkpoints (DAWNBench)",
            _dawnbench,
        ),
        ClockRule(
            "algoperf",
            "training steps only, from the first to the same evaluation; repeated steps count once (AlgoPerf)",
            _algoperf,
        ),
        ClockRule(
            "airbench",
            "training steps only, to the end of the schedule; the first logged steps count at the mean time of the others, as "
            "after a warm-up run (airbench)",
            _airbench,
        ),
        ClockRule("wall", "from submission to the same evaluation; includes everything, also queueing", _wall),
    )
}


def _total(row: Row, part: Part) -> float:
    return float(row.get(f"total_{part.key}", 0.0))
