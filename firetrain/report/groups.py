"""Runs that differ only in their seed, taken together, and against a baseline."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from firetrain.errors import UserError, unknown
from firetrain.report.clocks import Clock
from firetrain.report.history import History, Row
from firetrain.report.statistics import Estimate, geometric_mean, mann_whitney, median, ratio, smallest_p
from firetrain.report.target import has_ended, seconds_or_never

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Group:
    """Runs of one config, ranks and machine, which `label` tells from the others."""

    label: str
    members: tuple[History, ...]

    @property
    def first(self) -> History:
        """One that stands for what all have in common."""
        return self.members[0]

    @cached_property
    def ended(self) -> list[History]:
        """Those that came to their end, or diverged: they reached their target or missed it."""
        return [one for one in self.members if has_ended(one.state, str(one.facts.get("reason", "")))]

    @cached_property
    def reached(self) -> list[History]:
        """Those that met their target."""
        return [one for one in self.ended if one.hit]

    def times(self, clock: Clock) -> list[float]:
        """Time-to-accuracy in seconds of each run that ended; infinite where the target was missed."""
        return [seconds_or_never(clock.seconds(one)) for one in self.ended]

    def time(self, clock: Clock) -> Estimate | None:
        """The median of `times` with its interval, infinite where most missed the target; None without one."""
        return None if self.middle_time(clock) is None else median(self.times(clock))

    def middle_time(self, clock: Clock) -> float | None:
        """The same without an interval."""
        times = self.times(clock) if self.first.config.target.top1 is not None else []
        return statistics.median(times) if times else None

    def middle(self, key: str) -> float | None:
        """The median of a number of the summaries."""
        numbers = [one.summary[key] for one in self.ended if one.summary.get(key) is not None]
        return float(statistics.median(numbers)) if numbers else None


@dataclass(frozen=True)
class Against:
    """A group against the baseline, by one clock.

    `speedup` is the ratio of medians. `factors` multiply to the ratio of geometric means over the runs that reached the target:
    throughput (images/s in steps), samples (images to the target) and overhead (share of the time that went into steps).
    `p`: Mann and Whitney's, corrected for the number of groups (Holm 1979); `least_p`: what so few runs can give at best.
    """

    group: Group
    baseline: Group
    speedup: Estimate | None
    efficiency: float | None
    factors: Mapping[str, float]
    p: float | None
    least_p: float


def differences(against: Sequence[Against]) -> list[str]:
    """What can be said of those with a time-to-accuracy on both sides, and with how much right."""
    tested = [(one, one.speedup.value, one.p) for one in against if one.speedup and one.p is not None]
    lines, alike = [], []
    for one, speedup, p in tested:
        if p < SIGNIFICANT:
            how = f"{speedup:.2f} times as fast as" if speedup >= 1 else f"{1 / speedup:.2f} times slower than"
            runs = f"{len(one.group.ended)} against {len(one.baseline.ended)} runs"
            lines.append(f"{one.group.label}: {how} {one.baseline.label} (p = {p:.2g}, Mann-Whitney, {runs})")
        else:
            alike.append(f"{one.group.label} ({_spread(one.speedup)}, p = {p:.2g})")
    if alike:
        few = any(one.least_p >= SIGNIFICANT for one, _, p in tested if p >= SIGNIFICANT)
        why = f"; so few runs cannot show one at {SIGNIFICANT:g}" if few else ""
        lines.append(f"no difference from {against[0].baseline.label} shown (Mann-Whitney{why}): {', '.join(alike)}")
    return lines


def _spread(speedup: Estimate | None) -> str:
    if speedup is None:
        return "-"
    high = "anything" if speedup.high == math.inf else f"{speedup.high:.2f}"
    between = "" if speedup.low is None else f", {speedup.low:.2f} to {high}"
    return f"{speedup.value:.2f}x{between}"


def group(histories: Sequence[History]) -> list[Group]:
    """In the order of each group's first run."""
    members: dict[str, list[History]] = {}
    for history in histories:
        members.setdefault(_key(history), []).append(history)
    found = [tuple(sorted(same, key=lambda one: one.config.seed)) for same in members.values()]
    return [Group(label, same) for label, same in zip(_labels(found), found, strict=True)]


def find_baseline(groups: Sequence[Group], label: str | None) -> Group:
    """The group of this label, or the first; UserError names the valid ones."""
    if label is None:
        return groups[0]
    by_label = {one.label: one for one in groups}
    if label not in by_label:
        raise UserError(unknown("baseline", label, by_label))
    return by_label[label]


def compare(groups: Sequence[Group], baseline: Group, clock: Clock) -> list[Against]:
    """Every other group against the baseline."""
    others = [one for one in groups if one is not baseline]
    plain = [mann_whitney(one.times(clock), baseline.times(clock)) for one in others]
    return [
        _against(one, baseline, clock, p, sum(value is not None for value in plain))
        for one, p in zip(others, _holm(plain), strict=True)
    ]


def _against(one: Group, baseline: Group, clock: Clock, p: float | None, tests: int) -> Against:
    speedup = ratio(baseline.times(clock), one.times(clock))
    efficiency = speedup.value * baseline.first.ranks / one.first.ranks if speedup else None
    least = min(1.0, smallest_p(len(one.ended), len(baseline.ended)) * tests)
    return Against(one, baseline, speedup, efficiency, _factors(one, baseline, clock), p, least)


def _factors(one: Group, baseline: Group, clock: Clock) -> dict[str, float]:
    if not one.reached or not baseline.reached:
        return {}
    own, other = _identity(one, clock), _identity(baseline, clock)
    if not own or not other:
        return {}
    return {
        "throughput": own["images_per_s"] / other["images_per_s"],
        "samples": other["images"] / own["images"],
        "overhead": own["share"] / other["share"],
        "speedup": other["time_s"] / own["time_s"],
    }


def _identity(one: Group, clock: Clock) -> dict[str, float]:
    """Geometric means of time = images / images_per_s / share, over the runs that reached the target."""
    rows = []
    for history in one.reached:
        hit, time_s = history.hit, clock.seconds(history)
        if hit is None or not time_s or not hit["train_s"] or not hit.get("images_seen"):
            return {}
        images, train_s = hit["images_seen"], hit["train_s"]
        rows.append(
            {"time_s": time_s, "images": images, "images_per_s": images / train_s, "share": train_s / time_s},
        )
    return {key: geometric_mean([row[key] for row in rows]) for key in rows[0]}


def _holm(values: Sequence[float | None]) -> list[float | None]:
    """p-values that hold for all of them together."""
    order = sorted((value, place) for place, value in enumerate(values) if value is not None)
    found: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (value, place) in enumerate(order):
        highest = max(highest, min(1.0, value * (len(order) - rank)))
        found[place] = highest
    return found


def settings(history: History) -> dict[str, Any]:
    """All that decides a run's numbers, by dotted path; not the seed, and not where the data lies."""
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
    """The config's name, or a comparison's variant of it; for later groups with the same one, how they differ from the first."""
    firsts: dict[str, Row] = {}
    labels = []
    for members in groups:
        name = " ".join(filter(None, [members[0].config.name, members[0].facts.get("arm")]))
        own = settings(members[0])
        first = firsts.setdefault(name, own)
        differing = [key for key in own if own[key] != first.get(key)]
        told = [key for key in differing if not _follows(key, differing)]
        labels.append(" ".join([name, *(f"{_brief(key)}={_short(own[key])}" for key in told)]))
    return labels


def _follows(key: str, differing: Sequence[str]) -> bool:
    """Whether one of the others says the same."""
    return key == "ranks" and ("cluster.nodes" in differing or "cluster.ranks_per_node" in differing)


def _brief(key: str) -> str:
    return key.removesuffix(".name").removeprefix("cluster.")


def _short(value: Any) -> str:
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
