"""The table of predicted and measured times, and the recommendation for each case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean
from typing import Any

from worlds import World, is_held_out

from firetrain.predict.ranking import places_of, simplicity


def named_of(own: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row that `firetrain predict` recommends: the simplest that is not distinguishable from the fastest."""
    if "named" in own[0]:  # if that row is missing, because processors were its bottleneck: the simplest of the others
        return next((row for row in own if row["named"]), min(own, key=lambda row: simplicity(row["reduction"])))
    places = places_of({row["reduction"]: row["draws"] for row in own})
    return min((row for row in own if places[row["reduction"]] == 1), key=lambda row: simplicity(row["reduction"]))


def table(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> Iterable[str]:
    """A Markdown table of measured milliseconds and errors, with a row per case and world."""
    yield "| | | " + " | ".join(names) + " | mean absolute error | usual formulas |"
    yield "| --- | --- |" + " ---: |" * (len(names) + 2)
    for place in dict.fromkeys((row["what"], row["nodes"], row["factor"]) for row in rows):
        own = [row for row in rows if (row["what"], row["nodes"], row["factor"]) == place]
        cells = [cell(row) for row in sorted(own, key=lambda row: names.index(row["reduction"]))]
        whole, plain = (f"{mean(abs(row[key]) for row in own):.1%}" for key in ("error", "plain_error"))
        note = "" if is_held_out(own[0]) else " (not held out)"
        yield f"| {place[0]} | {World(*place[1:])}{note} | " + " | ".join([*cells, whole, plain]) + " |"


def cell(row: dict[str, Any]) -> str:
    """Measured milliseconds, the error, and a mark if the processors were the bottleneck."""
    mark = " †" if row["processors"] else ""
    return f"{1e3 * row['measured_s']:.0f} ({row['error']:+.1%}){mark}"
