"""A comparison as a table, with remarks."""

from __future__ import annotations

import math
from typing import Any

from firetrain.records.parts import OF_A_STEP
from firetrain.report.compared import LOSS_TOLERANCE, Compared
from firetrain.report.comparison import rows_of
from firetrain.report.grid import Grid
from firetrain.report.target import in_words, interval_in_words, seconds_or_never


def grid(comparison: dict[str, Any]) -> Grid:
    """The rows as text, with a separator between worlds."""
    to_target = comparison["measure"] == "time-to-accuracy"
    lines: list[list[str]] = []
    before = None
    for row in rows_of(comparison):
        if before and before != (row.config, row.ranks, row.nodes):
            lines.append([])
        before = (row.config, row.ranks, row.nodes)
        lines.append(cells(row, to_target))
    return Grid(headings(to_target), lines, names=3)


def headings(to_target: bool) -> list[str]:
    """The headings, for times of steps or times to the target."""
    value = (
        ["TTA s", "95 %", "reached", "top-1 %", "epochs", "to target"]
        if to_target
        else ["step ms", "95 %", *(part.heading for part in OF_A_STEP)]
    )
    return ["config", "nodes x ranks", "reduction", "place", *value, "images/s", "of 1 rank", "of 1 node", "note"]


def cells(row: Compared, to_target: bool) -> list[str]:
    """The cells of a row: milliseconds of steps, or seconds to the target."""
    scale, form = (1, "{:.1f}") if to_target else (1e3, "{:.1f}")

    def time(seconds: float | None) -> str:
        return "-" if seconds is None else form.format(seconds * scale)

    value_s = seconds_or_never(row.value_s) if row.missed else row.value_s
    compared = "-" if value_s is None else in_words(value_s, time)
    interval = "-"
    if row.low_s is not None and value_s != math.inf:
        interval = interval_in_words(row.low_s, seconds_or_never(row.high_s), time)
    if to_target:
        accuracies = " ".join(f"{100 * top1:.1f}" for top1 in row.top1) or "-"
        epochs = " ".join(map(str, row.epochs)) or "-"
        after = " ".join("-" if count is None else str(count) for count in row.epochs_to_target) or "-"
        value = [f"{row.reached} of {row.repeats}", accuracies, epochs, after]
    else:
        value = [time(row.parts[part.key]) for part in OF_A_STEP]
    share = ["-" if x is None else f"{x:.0%}" for x in (row.efficiency_one_rank, row.efficiency_one_node)]
    speed = "-" if row.images_per_s is None else f"{row.images_per_s:,.0f}"
    place = "-" if row.place is None else str(row.place)
    return [
        row.config, f"{row.nodes} x {row.ranks // row.nodes}", row.reduction, place, compared, interval, *value, speed,
        *share, row.note,
    ]  # fmt: skip


def remarks(comparison: dict[str, Any]) -> list[str]:
    """Remarks that explain the columns of the table."""
    if comparison["measure"] == "time-to-accuracy":
        first = "time-to-accuracy: median over seeds (a missed target counts as infinity); 95 % interval by bootstrap"
    else:
        first = "step time: median over repeats; 95 % interval by hierarchical bootstrap (repeats, then steps)"
    return [
        first,
        "place: 1 + the number of significantly faster reductions; reductions that share a place have overlapping intervals",
        f"losses are compared step by step with native's, or the first reduction's; relative tolerance {LOSS_TOLERANCE:g}",
        f"{', '.join(part.heading for part in OF_A_STEP)}: separate medians of rank 0; they need not sum to the step",
    ]
