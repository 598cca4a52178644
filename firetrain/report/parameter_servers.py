"""What the parameter servers of runs have counted: a table, and the staleness of gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

from firetrain.records.parts import COMPUTE, OF_A_STEP
from firetrain.report.groups import Group
from firetrain.report.tables import Table

_COUNTED = {"staleness", "mean_staleness", "dropped", "updates", "workers_lost"}


def of_servers(groups: Sequence[Group]) -> Table:
    """A row for each group with a parameter server: medians over its runs; `largest` is the largest staleness of all."""
    note = (
        "staleness: mean number of updates that a gradient is late; idle: share of the workers' time in steps in which they "
        "wait, for data too"
    )
    return Table("parameter servers", [_row(one) for one in groups if _facts(one)], 1, [note])


def staleness_of(groups: Sequence[Group]) -> dict[str, dict[int, int]]:
    """The number of gradients by staleness, of all runs of each group with a parameter server, by the group's label."""
    found = {}
    for one in groups:
        counts: Counter[int] = Counter()
        for facts in _facts(one):
            counts.update({int(value): int(number) for value, number in facts["staleness"].items()})
        if counts:
            found[one.label] = dict(sorted(counts.items()))
    return found


def _row(one: Group) -> dict[str, Any]:
    facts = _facts(one)
    middle = {key: float(median(fact[key] for fact in facts)) for key in ("mean_staleness", "dropped", "updates")}
    return {
        "config": one.label,
        "idle %": _idle(one),
        "staleness": middle["mean_staleness"],
        "largest": max(staleness_of([one]).get(one.label, {0: 0})),
        "dropped": middle["dropped"],
        "updates": middle["updates"],
        "workers lost": sum(fact["workers_lost"] for fact in facts),
    }


def _facts(one: Group) -> list[dict[str, Any]]:
    found = [run.summary.get("reduction", {}) for run in one.ended if run.config.strategy.servers and run.summary]
    return [facts for facts in found if facts.keys() >= _COUNTED and isinstance(facts["staleness"], dict)]


def _idle(one: Group) -> float | None:
    known = {part: float(value) for part in OF_A_STEP if (value := one.middle(part.key)) is not None}
    whole = sum(known.values())
    return 100 * (1 - known.get(COMPUTE, 0.0) / whole) if whole else None
