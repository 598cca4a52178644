"""Compare groups with a baseline: speedups, their factors, and their significance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from firetrain.report.clocks import ClockRule
from firetrain.report.groups import Group
from firetrain.report.statistics import Estimate, geometric_mean, mann_whitney, ratio, smallest_p

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Against:
    """A group compared with the baseline, by one clock rule.

    `speedup`: ratio of medians.
    `factors`: their product is the ratio of geometric means over the runs that reached the target. They are throughput (images/s
    in steps), samples (images to the target) and overhead (share of the time spent in steps).
    `p`: Mann-Whitney p-value, corrected for the number of groups (Holm 1979).
    `least_p`: smallest p-value possible with this number of runs.
    """

    group: Group
    baseline: Group
    speedup: Estimate | None
    efficiency: float | None
    factors: Mapping[str, float]
    p: float | None
    least_p: float


def differences(against: Sequence[Against]) -> list[str]:
    """Sentences about the groups that have a time-to-accuracy, as the baseline has, with p-values."""
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
        why = f"; too few runs for significance at {SIGNIFICANT:g}" if few else ""
        baseline = against[0].baseline.label
        lines.append(f"no significant difference from {baseline} (Mann-Whitney{why}): {', '.join(alike)}")
    return lines


def _spread(speedup: Estimate | None) -> str:
    if speedup is None:
        return "-"
    if speedup.interval is None:
        return f"{speedup.value:.2f}x"
    low, high = speedup.interval
    return f"{speedup.value:.2f}x, {low:.2f} to " + ("anything" if high == math.inf else f"{high:.2f}")


def compare(groups: Sequence[Group], baseline: Group, clock: ClockRule) -> list[Against]:
    """Compare every other group with the baseline."""
    others = [one for one in groups if one is not baseline]
    plain = [mann_whitney(one.times(clock), baseline.times(clock)) for one in others]
    return [
        _against(one, baseline, clock, p, sum(value is not None for value in plain))
        for one, p in zip(others, _holm(plain), strict=True)
    ]


def _against(one: Group, baseline: Group, clock: ClockRule, p: float | None, tests: int) -> Against:
    speedup = ratio(baseline.times(clock), one.times(clock))
    efficiency = speedup.value * baseline.first.ranks / one.first.ranks if speedup else None
    least = min(1.0, smallest_p(len(one.ended), len(baseline.ended)) * tests)
    return Against(one, baseline, speedup, efficiency, _factors(one, baseline, clock), p, least)


def _factors(one: Group, baseline: Group, clock: ClockRule) -> dict[str, float]:
    # a run that missed the target has no factors, and leaving it out would tell only of the lucky ones
    if any(len(group.reached) < len(group.ended) or not group.reached for group in (one, baseline)):
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


def _identity(one: Group, clock: ClockRule) -> dict[str, float]:
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
    """The p-values, corrected for multiple tests (Holm 1979)."""
    order = sorted((value, index) for index, value in enumerate(values) if value is not None)
    found: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (value, index) in enumerate(order):
        highest = max(highest, min(1.0, value * (len(order) - rank)))
        found[index] = highest
    return found
