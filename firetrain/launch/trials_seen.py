"""What the user has seen of a comparison's trials: which have ended, and which one is running."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from firetrain.launch.trials import Allocation
from firetrain.records import COMPLETED, FAILED, RUNNING, Run


class TrialsSeen:
    """Follows the trials of a comparison by their records.

    - `count`, `ended`: numbers of trials; those that were complete before are among the ended ones.
    - `running`: the allocation and name of the running trial, as of the last call of `newly_ended`; empty if there is none.
    """

    def __init__(self, allocations: Sequence[Allocation]) -> None:
        runs = [Run(trial.path) for allocation in allocations for trial in allocation.trials]
        self._waiting = [run for run in runs if not run.summary()]
        self.count, self.running = len(runs), ""

    @property
    def ended(self) -> int:
        """The number of trials that have ended."""
        return self.count - len(self._waiting)

    def newly_ended(self) -> Iterator[tuple[str, bool]]:
        """(a line about it, whether it failed) of each trial that has ended since the last call."""
        self.running = ""
        for run in list(self._waiting):
            facts, name = run.facts(), f"{run.path.parent.parent.name} {run.name}"
            if facts.get("state") == RUNNING:
                self.running = name
            elif facts.get("state") in (COMPLETED, FAILED):
                self._waiting.remove(run)
                why = f": {facts['reason']}" if facts.get("reason") else ""
                yield f"{self.ended} of {self.count}: {name} {facts['state']}{why}", facts["state"] == FAILED
