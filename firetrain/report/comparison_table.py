"""A comparison as a table, with remarks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from firetrain.config.sections.strategy import DATA_PARALLEL
from firetrain.records.parts import OF_A_PLACEMENT, OF_A_STEP, Part
from firetrain.records.target import or_never
from firetrain.report.compared import LOSS_TOLERANCE, Compared
from firetrain.report.comparison import rows_of
from firetrain.report.target import in_words, interval_in_words
from firetrain.report.text_table import TextTable


def text_table(comparison: dict[str, Any]) -> TextTable:
    """The rows as text, with a separator between worlds."""
    to_target, rows = comparison["measure"] == "time-to-accuracy", rows_of(comparison)
    columns = Columns.of(rows, to_target)
    lines: list[list[str]] = []
    before = None
    for row in rows:
        if before and before != (row.config, row.ranks, row.nodes):
            lines.append([])
        before = (row.config, row.ranks, row.nodes)
        lines.append(cells(row, columns))
    headings = columns.headings
    return TextTable(headings, lines, names=headings.index("place"))


@dataclass(frozen=True)
class Columns:
    """The columns that depend on the comparison.

    - `to_target`: whether times are to the target, in seconds, or of steps, in milliseconds.
    - `parts`: the parts of a step of which some row has seconds.
    - `strategies`: whether there are strategies other than data-parallel.
    """

    to_target: bool
    parts: tuple[Part, ...] = ()
    strategies: bool = False

    @classmethod
    def of(cls, rows: Sequence[Compared], to_target: bool) -> Columns:
        """The columns of a table of these rows."""
        known = [part for part in OF_A_STEP if any(row.parts[part.key] is not None for row in rows)] or OF_A_STEP
        present = [part for part in known if part not in OF_A_PLACEMENT or any(row.parts[part.key] for row in rows)]
        return cls(to_target, tuple(present), any(row.strategy != DATA_PARALLEL for row in rows))

    @property
    def headings(self) -> list[str]:
        """The headings of all columns."""
        value = (
            ["TTA s", "95 %", "reached", "top-1 %", "epochs", "to target"]
            if self.to_target
            else ["step ms", "95 %", *(part.heading for part in self.parts)]
        )
        names = ["config", "nodes x ranks", *(["strategy"] if self.strategies else []), "reduction"]
        return [*names, "place", *value, "images/s", "of 1 rank", "of 1 node", "note"]


def cells(row: Compared, columns: Columns) -> list[str]:
    """What a row shows below each of the headings of `columns`; times in ms, or in s to a target, and "-" for what is unknown."""
    to_target = columns.to_target
    scale, form = (1, "{:.1f}") if to_target else (1e3, "{:.1f}")

    def time(seconds: float | None) -> str:
        return "-" if seconds is None else form.format(seconds * scale)

    value_s = or_never(row.value_s) if row.missed else row.value_s
    compared = "-" if value_s is None else in_words(value_s, time)
    interval = "-"
    if row.low_s is not None and value_s != math.inf:
        interval = interval_in_words(row.low_s, or_never(row.high_s), time)
    if to_target:
        accuracies = " ".join(f"{100 * top1:.1f}" for top1 in row.top1) or "-"
        epochs = " ".join(map(str, row.epochs)) or "-"
        after = " ".join("-" if count is None else str(count) for count in row.epochs_to_target) or "-"
        value = [f"{row.reached} of {row.repeats}", accuracies, epochs, after]
    else:
        value = [time(row.parts[part.key]) for part in columns.parts]
    share = ["-" if x is None else f"{x:.0%}" for x in (row.efficiency_one_rank, row.efficiency_one_node)]
    speed = "-" if row.images_per_s is None else f"{row.images_per_s:,.0f}"
    place = "-" if row.place is None else str(row.place)
    names = [row.config, f"{row.nodes} x {row.ranks // row.nodes}", *([row.strategy] if columns.strategies else [])]
    return [*names, row.reduction, place, compared, interval, *value, speed, *share, row.note]


def remarks(comparison: dict[str, Any]) -> list[str]:
    """Remarks that explain the columns of the table."""
    to_target = comparison["measure"] == "time-to-accuracy"
    if to_target:
        first = "time-to-accuracy: median over seeds (a missed target counts as infinity); 95 % interval by bootstrap"
    else:
        first = "step time: median over repeats; 95 % interval by hierarchical bootstrap (repeats, then steps)"
    losses = (
        "losses are compared step by step with those of native under data-parallel, or of the first row that is nearest to that; "
        f"relative tolerance {LOSS_TOLERANCE:g}"
    )
    parts = () if to_target else Columns.of(rows_of(comparison), to_target=False).parts
    return [
        first,
        "place: 1 + the number of significantly faster rows; rows that share a place have overlapping intervals"
        + ("; a single seed has neither" if to_target else ""),
        *([losses] if any(row.loss_difference is not None for row in rows_of(comparison)) else []),
        *(
            [f"{', '.join(part.heading for part in parts)}: separate medians of rank 0; they need not sum to the step"]
            if parts
            else []
        ),
    ]
