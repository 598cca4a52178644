"""The content of a report, for terminal, page and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from firetrain.records.outcome import Outcome
from firetrain.report.against import Against, compare, differences
from firetrain.report.clocks import CLOCKS, ClockRule
from firetrain.report.doubts import doubts
from firetrain.report.groups import Group, find_baseline, group
from firetrain.report.history import History
from firetrain.report.parameter_servers import of_servers
from firetrain.report.simulated import of_outcomes
from firetrain.report.tables import Table, of_clocks, of_factors, of_groups, of_parts, of_runs


@dataclass(frozen=True)
class Report:
    """Runs in groups, compared with a baseline group by one clock rule.

    `left_out`: unreadable runs, with the reasons. `simulated`: policies of a parameter server that were simulated.
    """

    histories: Sequence[History]
    left_out: Sequence[str]
    groups: Sequence[Group]
    baseline: Group
    against: Sequence[Against]
    clock: ClockRule
    olympic: bool
    simulated: Sequence[Outcome] = ()

    @classmethod
    def of(
        cls,
        histories: Sequence[History],
        left_out: Sequence[str],
        clock: str,
        baseline: str | None,
        *,
        olympic: bool,
        simulated: Sequence[Outcome] = (),
    ) -> Report:
        """The report of at least one run; UserError if there is no such baseline."""
        groups = group(histories)
        first = find_baseline(groups, baseline)
        against = compare(groups, first, CLOCKS[clock])
        return cls(histories, left_out, groups, first, against, CLOCKS[clock], olympic, simulated)

    @cached_property
    def main(self) -> Table:
        """The main table, with a row per group."""
        return of_groups(self.groups, self.against, self.clock, olympic=self.olympic)

    @cached_property
    def tables(self) -> list[Table]:
        """The other tables, if they have content: clocks, parts of the time, factors of speedups, parameter servers."""
        timed = [one for one in self.groups if one.reached]
        ended = [one for one in self.groups if one.ended]
        found = (
            of_clocks(timed),
            of_parts(ended),
            of_factors(self.against),
            of_servers(ended),
            of_outcomes(self.simulated),
        )
        return [table for table in found if table.rows]

    @cached_property
    def runs(self) -> Table:
        """The table with a row per run."""
        return of_runs(self.histories, self.clock)

    @cached_property
    def differences(self) -> list[str]:
        """Sentences about the groups that have a time-to-accuracy, compared with the baseline."""
        return differences(self.against)

    @cached_property
    def doubts(self) -> list[str]:
        """The warnings about all groups."""
        return doubts(self.groups, self.clock)

    def as_json(self) -> dict[str, Any]:
        """The numbers, without rounding; null where there is none."""
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
    """Replace non-finite numbers by None, because JSON has none."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
