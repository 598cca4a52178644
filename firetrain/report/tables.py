"""Tables of groups and runs, as numbers (for JSON) and as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from firetrain.config.sections.strategy import method_of
from firetrain.records import COMPLETED
from firetrain.records.parts import CHECKPOINT, EVALUATION, EXPOSED, LOST, OF_A_STEP, OPENING, QUEUE, RESTART, STARTUP
from firetrain.report.against import Against
from firetrain.report.clocks import CLOCKS, ClockRule
from firetrain.report.groups import Group
from firetrain.report.history import History
from firetrain.report.statistics import Estimate, olympic_mean
from firetrain.report.target import NOT_REACHED, interval_in_words
from firetrain.report.text_table import TextTable

# columns that are shown only if they have a value
OPTIONAL = (
    "J/image", "kWh to target", "cost to target", "top-1 95 %", "idle 95 %", "staleness 95 %", "dropped 95 %",
)  # fmt: skip
_NAMES = 4


@dataclass(frozen=True)
class Table:
    """A table: title, rows of values by column, number of name columns, and notes."""

    title: str
    rows: Sequence[Mapping[str, Any]]
    names: int
    notes: Sequence[str] = ()

    def text_table(self) -> TextTable:
        """The table as text: a missing value is a dash; optional columns without values are omitted."""
        columns = [key for key in self.rows[0] if key not in OPTIONAL or any(row[key] is not None for row in self.rows)]
        return TextTable(columns, [[_text(key, row[key]) for key in columns] for row in self.rows], self.names)


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
        "speedup = throughput x samples x overhead (geometric means; only where all runs met the target): images/s in steps; "
        "images to the target (inverted: fewer is better); share of the time spent in steps"
    ]
    return Table("where the speedup comes from", rows, 1, notes)


_FACTORS = ("speedup", "throughput", "samples", "overhead")


def _group_row(one: Group, against: Against | None, clock: ClockRule, olympic: bool) -> dict[str, Any]:
    time, times = one.time(clock), one.times(clock)
    if olympic and time is not None:
        mean = olympic_mean(times)
        time = None if mean is None else Estimate(mean)
    states = sorted({member.state for member in one.runs if member.state != COMPLETED})
    target = one.first.config.target.top1
    return {
        "config": one.label + (f" ({', '.join(states)})" if states else ""),
        **_names(one.first),
        "time-to-accuracy s": _value(time),
        "95 %": time.interval if time is not None and math.isfinite(time.value) else None,
        **_gain(against, time),
        "runs": len(one.runs),
        "reached": len(one.reached) if target is not None else None,
        "epochs": _epochs(one),
        "top-1": one.middle("top1"),
        "target": target,
        "images/s": one.middle("images_per_s"),
        "exposed comm %": _exposed(one.middle),
        **_sizes(one.first),
        **_measured(one.ended),
    }


def _gain(against: Against | None, time: Estimate | None) -> dict[str, float | None]:
    """Speedup and efficiency against the baseline; the baseline itself has 1.0, if it met its target."""
    if against is None:
        return dict.fromkeys(("speedup", "efficiency"), 1.0 if _is_met(time) else None)
    return {"speedup": against.speedup.value if against.speedup else None, "efficiency": against.efficiency}


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
    method = method_of(str(config.strategy.spec), str(config.reduction.spec))
    return {"model": config.model.name, "dataset": config.data.name, "reduction": method}


def _sizes(one: History) -> dict[str, Any]:
    config = one.config
    return {
        "nodes": one.summary.get("nodes") or config.cluster.nodes,
        "ranks": one.ranks,
        "global batch": config.batch.global_size,
        "peak rate": config.peak_rate,
    }


def _exposed(number: Callable[[str], float | None]) -> float | None:
    known = {part: float(value) for part in OF_A_STEP if (value := number(part.key)) is not None}
    whole = sum(known.values())
    return 100 * known[EXPOSED] / whole if EXPOSED in known and whole else None


def _measured(members: Sequence[History]) -> dict[str, float | None]:
    """Energy if GPUs measure it in every run, cost if the site has a price; otherwise None, not zero. A miss costs infinity."""
    rows = [one.hit or (one.evaluations[-1] if one.evaluations else {}) for one in members]
    joules = [(row["energy_j"], row["images_seen"]) for row in rows if row.get("energy_j") and row.get("images_seen")]
    costs = [_cost(one) for one in members if one.facts.get("price_per_node_hour") is not None]
    to_target = (
        [one.hit["energy_j"] / 3.6e6 if one.hit else math.inf for one in members] if len(joules) == len(rows) else []
    )
    return {
        "J/image": _middle([energy / images for energy, images in joules]),
        "kWh to target": _middle(to_target),
        "cost to target": _middle(costs),
    }


def _cost(one: History) -> float:
    """The price of a run's nodes until it met its target; infinite if it never did."""
    if not one.hit:
        return math.inf
    nodes = one.summary.get("nodes") or one.config.cluster.nodes
    seconds = one.hit["elapsed_s"] + one.hit.get(f"total_{STARTUP.key}", 0.0)
    return float(one.facts["price_per_node_hour"] * nodes * seconds / 3600)


def _middle(numbers: Sequence[float]) -> float | None:
    return median(numbers) if numbers else None


def _epochs(one: Group) -> float | None:
    """The median of the epochs to the target, infinite for a run that missed it; without a target, of all epochs."""
    if one.first.config.target.top1 is None or not one.ended:
        return one.middle("epochs")
    return median([float(member.hit["epoch"]) if member.hit else math.inf for member in one.ended])


def _is_met(time: Estimate | None) -> bool:
    return time is not None and math.isfinite(time.value)


def _value(found: Estimate | None) -> float | None:
    return found.value if found else None


_FORMS = {
    "top-1": "{:.2%}", "target": "{:.2%}", "speedup": "{:.2f}x", "throughput": "{:.2f}x", "samples": "{:.2f}x",
    "overhead": "{:.2f}x", "efficiency": "{:.0%}", "images/s": "{:,.0f}", "peak rate": "{:g}", "epochs": "{:g}",
    "top-1 95 %": "{:.2%}", "idle 95 %": "{:.0f}", "staleness 95 %": "{:.2f}", "dropped 95 %": "{:g}",
    "J/image": "{:.3g}", "idle %": "{:.0f}", "staleness": "{:.2f}", "dropped": "{:g}", "updates": "{:g}",
    "ms an update": "{:.1f}", "kWh to target": "{:.3g}", "cost to target": "{:.2f}", "exposed comm %": "{:.1f}",
}  # fmt: skip


def _text(column: str, value: Any) -> str:
    if value is None:
        return "-"
    if column.endswith("95 %"):
        low, high = value
        return interval_in_words(low, high, _FORMS.get(column, "{:.1f}").format)
    if isinstance(value, float) and not math.isfinite(value):
        return NOT_REACHED if column.endswith((" s", " to target")) or column == "epochs" else "-"
    if column in _FORMS:
        return _FORMS[column].format(value)
    return f"{value:.1f}" if column.endswith(" s") else str(value)
