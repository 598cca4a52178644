"""Tables of groups and runs, as numbers (for JSON) and as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from firetrain.records import COMPLETED
from firetrain.records.parts import CHECKPOINT, EVALUATION, EXPOSED, LOST, OF_A_STEP, OPENING, QUEUE, RESTART, STARTUP
from firetrain.report.against import Against
from firetrain.report.clocks import CLOCKS, ClockRule
from firetrain.report.grid import Grid
from firetrain.report.groups import Group
from firetrain.report.history import History
from firetrain.report.statistics import Estimate, olympic_mean
from firetrain.report.target import NOT_REACHED, interval_in_words

# columns that are shown only if they have a value
OPTIONAL = ("J/image", "kWh to target", "cost to target")
_NAMES = 4


@dataclass(frozen=True)
class Table:
    """A table: title, rows of values by column, number of name columns, and notes."""

    title: str
    rows: Sequence[Mapping[str, Any]]
    names: int
    notes: Sequence[str] = ()

    def grid(self) -> Grid:
        """The table as text: a missing value is a dash; optional columns without values are omitted."""
        columns = [key for key in self.rows[0] if key not in OPTIONAL or any(row[key] is not None for row in self.rows)]
        return Grid(columns, [[_text(key, row[key]) for key in columns] for row in self.rows], self.names)


def of_groups(groups: Sequence[Group], against: Sequence[Against], clock: ClockRule, *, olympic: bool = False) -> Table:
    """A row per group: names, time-to-accuracy, comparison with the baseline, numbers of runs."""
    by_label = {one.group.label: one for one in against}
    rows = [_group_row(one, by_label.get(one.label), clock, olympic) for one in groups]
    notes = [
        f"time-to-accuracy: median over seeds with 95 % interval (bootstrap); clock {clock.name}: {clock.definition}"
    ]
    if olympic:
        notes.append(
            "time-to-accuracy: Olympic mean (without the fastest and the slowest run, as in MLPerf), without an interval"
        )
    return Table("time-to-accuracy", rows, _NAMES, notes)


def of_runs(histories: Sequence[History], clock: ClockRule) -> Table:
    """The table of runs, with a row per run."""
    return Table("runs", [_run_row(one, clock) for one in histories], _NAMES)


def of_clocks(groups: Sequence[Group]) -> Table:
    """Medians of time-to-accuracy by every clock rule."""
    rows = [
        {"config": one.label, **{f"{name} s": one.middle_time(clock) for name, clock in CLOCKS.items()}}
        for one in groups
    ]
    return Table("by every clock", rows, 1, [f"{clock.name}: {clock.definition}" for clock in CLOCKS.values()])


def of_parts(groups: Sequence[Group]) -> Table:
    """Medians of the parts of the time, over the runs that ended; the parts of steps are rank 0's."""
    parts = (QUEUE, STARTUP, OPENING, *OF_A_STEP, EVALUATION, CHECKPOINT, RESTART, LOST)
    present = [part for part in parts if any(one.middle(part.key) for one in groups)]
    rows = [{"config": one.label, **{f"{part.name} s": one.middle(part.key) for part in present}} for one in groups]
    return Table("where the time went", rows, 1)


def of_factors(against: Sequence[Against]) -> Table:
    """The factors of each speedup."""
    rows = [
        {"config": one.group.label, **{key: one.factors[key] for key in _FACTORS}} for one in against if one.factors
    ]
    notes = [
        "speedup = throughput x samples x overhead (geometric means over the runs that met the target): images/s in steps; "
        "images to the target (inverted: fewer is better); share of the time spent in steps"
    ]
    return Table("where the speedup comes from", rows, 1, notes)


_FACTORS = ("speedup", "throughput", "samples", "overhead")


def _group_row(one: Group, against: Against | None, clock: ClockRule, olympic: bool) -> dict[str, Any]:
    time, times = one.time(clock), one.times(clock)
    if olympic and time is not None:
        mean = olympic_mean(times)
        time = None if mean is None else Estimate(mean)
    states = sorted({member.state for member in one.members if member.state != COMPLETED})
    target = one.first.config.target.top1
    return {
        "config": one.label + (f" ({', '.join(states)})" if states else ""),
        **_names(one.first),
        "time-to-accuracy s": _value(time),
        "95 %": None if time is None or time.low is None or not math.isfinite(time.value) else (time.low, time.high),
        "speedup": against.speedup.value
        if against and against.speedup
        else None
        if against or not _is_met(time)
        else 1.0,
        "efficiency": against.efficiency if against else 1.0 if _is_met(time) else None,
        "runs": len(one.members),
        "reached": len(one.reached) if target is not None else None,
        "epochs": _middle([member.hit["epoch"] for member in one.reached if member.hit]) or one.middle("epochs"),
        "top-1": one.middle("top1"),
        "target": target,
        "images/s": one.middle("images_per_s"),
        "exposed comm %": _exposed(one.middle),
        **_sizes(one.first),
        **_measured(one.reached or one.ended),
    }


def _run_row(one: History, clock: ClockRule) -> dict[str, Any]:
    summary = one.summary.get
    return {
        "run": one.name + ("" if one.state == COMPLETED else f" ({one.state})"),
        **_names(one),
        "seed": one.config.seed,
        "time-to-accuracy s": clock.seconds(one),
        "epochs": one.hit["epoch"] if one.hit else summary("epochs"),
        "top-1": summary("top1"),
        "target": one.config.target.top1,
        "images/s": summary("images_per_s"),
        "exposed comm %": _exposed(summary),
        **_sizes(one),
        **_measured([one]),
    }


def _names(one: History) -> dict[str, Any]:
    config = one.config
    return {"model": config.model.name, "dataset": config.data.name, "reduction": str(config.reduction.spec)}


def _sizes(one: History) -> dict[str, Any]:
    config = one.config
    return {
        "nodes": one.summary.get("nodes") or config.cluster.nodes,
        "ranks": one.ranks,
        "global batch": config.batch.global_size,
        "peak rate": config.peak_rate,
    }


def _exposed(number: Callable[[str], float | None]) -> float | None:
    seconds = {part: number(part.key) for part in OF_A_STEP}
    known = {part: float(value) for part, value in seconds.items() if value is not None}
    whole = sum(known.values())
    return 100 * known[EXPOSED] / whole if known.keys() == seconds.keys() and whole else None


def _measured(members: Sequence[History]) -> dict[str, float | None]:
    """Energy if GPUs measure it, cost if the site has a price; otherwise None, not zero."""
    rows = [one.hit or (one.evaluations[-1] if one.evaluations else {}) for one in members]
    joules = [(row["energy_j"], row["images_seen"]) for row in rows if row.get("energy_j") and row.get("images_seen")]
    hits = [(one, one.hit) for one in members if one.hit and one.facts.get("price_per_node_hour") is not None]
    costs = [
        one.facts["price_per_node_hour"] * (one.summary.get("nodes") or one.config.cluster.nodes)
        * (hit["elapsed_s"] + hit.get("total_startup_s", 0.0)) / 3600
        for one, hit in hits
    ]  # fmt: skip
    to_target = [one.hit["energy_j"] / 3.6e6 for one in members if one.hit and one.hit.get("energy_j")]
    return {
        "J/image": _middle([energy / images for energy, images in joules]),
        "kWh to target": _middle(to_target),
        "cost to target": _middle(costs),
    }


def _middle(numbers: Sequence[float]) -> float | None:
    return median(numbers) if numbers else None


def _is_met(time: Estimate | None) -> bool:
    return time is not None and math.isfinite(time.value)


def _value(found: Estimate | None) -> float | None:
    return found.value if found else None


_FORMS = {
    "top-1": "{:.2%}", "target": "{:.2%}", "speedup": "{:.2f}x", "throughput": "{:.2f}x", "samples": "{:.2f}x",
    "overhead": "{:.2f}x", "efficiency": "{:.0%}", "images/s": "{:,.0f}", "peak rate": "{:g}", "epochs": "{:g}",
    "J/image": "{:.3g}", "kWh to target": "{:.3g}", "cost to target": "{:.2f}", "exposed comm %": "{:.1f}",
}  # fmt: skip


def _text(column: str, value: Any) -> str:
    if value is None:
        return "-"
    if column == "95 %":
        low, high = value
        return interval_in_words(low, high, "{:.1f}".format)
    if isinstance(value, float) and not math.isfinite(value):
        return NOT_REACHED if column.endswith(" s") else "-"
    if column in _FORMS:
        return _FORMS[column].format(value)
    return f"{value:.1f}" if column.endswith(" s") else str(value)
