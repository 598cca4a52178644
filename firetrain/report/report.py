"""All that is told of some runs: put together once, shown in a terminal, as a page or as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from firetrain.report.clocks import CLOCKS, Clock
from firetrain.report.doubts import doubts
from firetrain.report.groups import Against, Group, compare, differences, find_baseline, group
from firetrain.report.history import History
from firetrain.report.tables import Table, of_clocks, of_factors, of_groups, of_parts, of_runs


@dataclass(frozen=True)
class Report:
    """Runs, taken together in groups, by one clock, against one of the groups. `left_out`: what could not be read, and why."""

    histories: Sequence[History]
    left_out: Sequence[str]
    groups: Sequence[Group]
    baseline: Group
    against: Sequence[Against]
    clock: Clock
    olympic: bool

    @classmethod
    def of(
        cls, histories: Sequence[History], left_out: Sequence[str], clock: str, baseline: str | None, *, olympic: bool
    ) -> Report:
        """Of at least one run; UserError if there is no such baseline."""
        groups = group(histories)
        first = find_baseline(groups, baseline)
        against = compare(groups, first, CLOCKS[clock])
        return cls(histories, left_out, groups, first, against, CLOCKS[clock], olympic)

    @cached_property
    def main(self) -> Table:
        """The table of groups."""
        return of_groups(self.groups, self.against, self.clock, olympic=self.olympic)

    @cached_property
    def tables(self) -> list[Table]:
        """The others, those that have something to show."""
        timed = [one for one in self.groups if one.reached]
        found = [of_clocks(timed)] if timed else []
        ended = [one for one in self.groups if one.ended]
        found += [of_parts(ended)] if ended else []
        factors = of_factors(self.against)
        return [*found, factors] if factors.rows else found

    @cached_property
    def runs(self) -> Table:
        """A row per run."""
        return of_runs(self.histories, self.clock)

    @cached_property
    def differences(self) -> list[str]:
        """Of every group from the baseline, where both have a time-to-accuracy, in words."""
        return differences(self.against)

    @cached_property
    def doubts(self) -> list[str]:
        """Of all groups."""
        return doubts(self.groups, self.clock)

    def as_json(self) -> dict[str, Any]:
        """Numbers without rounding; null where there is none."""
        return {
            "clock": self.clock.name,
            "clocks": {clock.name: clock.definition for clock in CLOCKS.values()},
            "baseline": self.baseline.label,
            "groups": _finite([dict(row) for row in self.main.rows]),
            "tables": _finite({table.title: [dict(row) for row in table.rows] for table in self.tables}),
            "runs": _finite([dict(row) for row in self.runs.rows]),
            "differences": self.differences,
            "warnings": self.doubts,
            "left_out": list(self.left_out),
        }


def _finite(value: Any) -> Any:
    """JSON has no infinity: what is not a finite number is null."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
