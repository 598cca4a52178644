"""The steps of a script of the user's own, which its Reducer records in the run that the launcher names."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from firetrain.cluster import Clock, SystemClock
from firetrain.errors import FiretrainError, UserError
from firetrain.records.parts import EXPOSED
from firetrain.records.run import Run

# variables of a command's ranks: the run; its attempt; the reduction of scripts that name none; the number of steps of a
# comparison's trial
RUN, ATTEMPT, REDUCTION, TRIAL_STEPS = (
    "FIRETRAIN_RUN", "FIRETRAIN_ATTEMPT", "FIRETRAIN_REDUCTION", "FIRETRAIN_TRIAL_STEPS"
)  # fmt: skip
_WRITE_EVERY_S = 1.0


class ScriptSteps:
    """Records the time of each step of a script, from the end of the one before, and its exposed communication.

    The first step begins when this object is made. Lines are written about once a second, between two steps, and those of
    tentative steps at the end.
    `run`: where they are written; None on ranks other than rank 0. `last`: the step with which the trial ends.
    """

    def __init__(self, run: Run | None, last: int, clock: Clock | None = None) -> None:
        self._run, self._last, self._clock = run, last, clock or SystemClock()
        self._lines: list[dict[str, float | str]] = []
        self._step = self._first = max((row["step"] for row in run.metrics("step")), default=0) if run else 0
        self._began_s = self._written_s = self._clock.now_s()
        atexit.register(self.write)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str], rank: int) -> ScriptSteps | None:
        """The record of a comparison's trial, whose variables ask for it; None if they do not."""
        folder, last = environment.get(RUN), environment.get(TRIAL_STEPS)
        if not (folder and last):
            return None
        return cls(Run.open(Path(folder)) if rank == 0 else None, int(last))

    def begin_again(self) -> None:
        """Forget all tentative steps, and begin the first one now."""
        self._lines.clear()
        self._step, self._began_s = self._first, self._clock.now_s()

    def end(self, exposed_s: float, *, tentative: bool = False) -> bool:
        """End a step, of which communication that computation did not hide took `exposed_s`; whether a trial ends with it."""
        now_s, self._step = self._clock.now_s(), self._step + 1
        self._lines.append(
            {"kind": "step", "step": self._step, "step_s": now_s - self._began_s, EXPOSED.key: exposed_s}
        )
        is_last = self._step == self._last
        if is_last or (not tentative and now_s - self._written_s >= _WRITE_EVERY_S):
            self.write()
        self._began_s = self._clock.now_s()
        return is_last

    def write(self) -> None:
        """Write the lines that have not been written; a disk that is full does not end the script."""
        lines, self._lines = self._lines, []
        if self._run is not None:
            with suppress(FiretrainError):
                for line in lines:
                    self._run.append(line)
        self._written_s = self._clock.now_s()


def variables_of_trial(run: Run) -> dict[str, str]:
    """The variables that tell a script about its trial; empty if `run` is no trial of a comparison."""
    facts = run.facts()
    if "untimed_steps" not in facts or "reduction" not in facts:
        return {}
    # ranks alone have nothing to sum
    reduction = facts["reduction"] if facts["ranks"] > 1 else "native"
    return {REDUCTION: reduction, TRIAL_STEPS: str(facts["steps"] + facts["untimed_steps"])}


def refuse_chosen(reduction: str | None) -> None:
    """UserError if a script names another reduction than the comparison that runs it."""
    asked = os.environ.get(REDUCTION)
    if os.environ.get(TRIAL_STEPS) and reduction and reduction != asked:
        raise UserError(
            f"this script names its reduction itself, {reduction}, so that the comparison cannot choose {asked}: make it "
            f"Reducer() without a name, which reads {REDUCTION}"
        )
