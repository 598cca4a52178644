"""Groups of runs that differ only in their seed, with distinct labels."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from firetrain.errors import UserError, unknown
from firetrain.records.target import has_ended, or_never
from firetrain.report.clocks import ClockRule
from firetrain.report.history import History
from firetrain.report.statistics import Estimate, median_estimate


@dataclass(frozen=True)
class Group:
    """Runs of one config on the same number of ranks and kind of machine, with a label."""

    label: str
    runs: tuple[History, ...]

    @property
    def first(self) -> History:
        """The first run, for settings that all runs share."""
        return self.runs[0]

    @cached_property
    def ended(self) -> list[History]:
        """The runs that completed or diverged, which have therefore reached or missed their target."""
        return [one for one in self.runs if has_ended(one.state, str(one.facts.get("reason", "")))]

    @cached_property
    def reached(self) -> list[History]:
        """The runs that met their target."""
        return [one for one in self.ended if one.hit]

    def times(self, clock: ClockRule) -> list[float]:
        """Time-to-accuracy in seconds of each run in `ended`; infinite if it missed its target."""
        return [or_never(clock.seconds(one)) for one in self.ended]

    def time(self, clock: ClockRule) -> Estimate | None:
        """The median of `times` with its interval; infinite if most runs missed the target, None without a target or times."""
        return None if self.middle_time(clock) is None else median_estimate(self.times(clock))

    def middle_time(self, clock: ClockRule) -> float | None:
        """The median of `times` without its interval."""
        times = self.times(clock) if self.first.config.target.top1 is not None else []
        return statistics.median(times) if times else None

    def middle(self, key: str) -> float | None:
        """The median of a value over the summaries; None if none has it."""
        numbers = [one.summary[key] for one in self.ended if one.summary.get(key) is not None]
        return float(statistics.median(numbers)) if numbers else None


def group(histories: Sequence[History]) -> list[Group]:
    """Group runs by their settings, in the order of the groups' first runs."""
    runs: dict[str, list[History]] = {}
    for history in histories:
        runs.setdefault(_key(history), []).append(history)
    found = [tuple(sorted(same, key=lambda one: one.config.seed)) for same in runs.values()]
    return [Group(label, same) for label, same in zip(_labels(found), found, strict=True)]


def find_baseline(groups: Sequence[Group], label: str | None) -> Group:
    """The group with this label, or the first; UserError lists the labels."""
    if label is None:
        return groups[0]
    by_label = {one.label: one for one in groups}
    if label not in by_label:
        raise UserError(unknown("baseline", label, by_label))
    return by_label[label]


def settings(history: History) -> dict[str, Any]:
    """All settings that determine a run's results, by dotted path, except the seed and the data's folder."""
    apart: Any = {"seed": True, "provenance": True, "data": {"root"}}
    flat = {
        f"{section}.{key}" if isinstance(value, dict) else section: inner
        for section, value in history.config.model_dump(mode="json", exclude=apart).items()
        for key, inner in (value.items() if isinstance(value, dict) else [("", value)])
    }
    machine = history.facts.get("machine") or {}
    hardware = {
        "processor": machine.get("processor"),
        "gpu": history.facts.get("gpu"),
        "site": history.facts.get("site"),
    }
    return {**flat, "ranks": history.ranks, **hardware}


def _key(history: History) -> str:
    return json.dumps(settings(history), sort_keys=True)


def _labels(groups: Sequence[Sequence[History]]) -> list[str]:
    """The label of each group: the name of config and arm, and the differences from the first group of this name."""
    firsts: dict[str, dict[str, Any]] = {}
    labels = []
    for runs in groups:
        name = " ".join(filter(None, [runs[0].config.name, runs[0].facts.get("arm")]))
        own = settings(runs[0])
        first = firsts.setdefault(name, own)
        differing = [key for key in own if own[key] != first.get(key)]
        shown = [key for key in differing if not _follows(key, differing)]
        labels.append(" ".join([name, *(f"{_brief(key)}={_short(own[key])}" for key in shown)]))
    return labels


def _follows(key: str, differing: Sequence[str]) -> bool:
    """Whether this difference is implied by another one."""
    return key == "ranks" and ("cluster.nodes" in differing or "cluster.ranks_per_node" in differing)


def _brief(key: str) -> str:
    return key.removesuffix(".name").removeprefix("cluster.")


def _short(value: Any) -> str:
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
