"""A prediction as text: table, remarks, formulas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from firetrain.config.sections.strategy import DATA_PARALLEL
from firetrain.predict.network import Shape
from firetrain.predict.predicted_step import PredictedStep
from firetrain.predict.prediction import Prediction
from firetrain.predict.predictor import PARTS
from firetrain.predict.ranking import MODEL_ERROR, crossovers
from firetrain.report.text_table import TextTable

_OPTIONAL = {"hours": "hours", "cost": "cost", "kWh": "kwh"}


def text_table(rows: Sequence[PredictedStep]) -> TextTable:
    """A row per number of ranks, strategy and reduction; hours, cost and energy if they are known."""
    shown = {heading: key for heading, key in _OPTIONAL.items() if any(getattr(row, key) is not None for row in rows)}
    parts = _parts_of(rows)
    with_strategies = any(row.strategy != DATA_PARALLEL for row in rows)
    headings = [
        "ranks",
        *(["strategy"] if with_strategies else []),
        "reduction",
        "place",
        "batch",
        "step ms",
        "95 %",
        *parts,
        "images/s",
        "speedup",
        "efficiency",
        *shown,
    ]
    lines: list[list[str]] = []
    for before, row in zip([None, *rows], rows, strict=False):
        if before and before.ranks != row.ranks:
            lines.append([])
        cells = [*_cells(row, parts), *(_amount(getattr(row, key)) for key in shown.values())]
        lines.append([cells[0], row.strategy, *cells[1:]] if with_strategies else cells)
    return TextTable(headings, lines, names=3 if with_strategies else 2)


def remarks(prediction: Prediction) -> Iterator[str]:
    """Remarks below the table: the recommended reduction, the largest part of a step, published results, and notes."""
    rows = prediction.rows
    if changes := crossovers(rows):
        first, before, _ = changes[0]
        follow = (f"{after} from {count} ranks" for count, _, after in changes)
        yield f"recommended: {'; '.join([f'{before} below {first} ranks', *follow])}"
    if any(row.ranks > 1 for row in rows):
        yield (
            "place: 1 + the number of faster rows; a row is faster if it is so in 97.5 % of the draws by more than "
            f"{MODEL_ERROR:.0%}, the usual error of a prediction; *: recommended, the simplest row in first place"
        )
    last = next(row for row in rows if row.ranks == rows[-1].ranks and row.is_recommended)
    yield f"largest part of a step on {last.ranks} ranks: {last.limit}"
    for one in prediction.published:
        gain = f", {one['predicted_speedup']:.1f}x to the same accuracy" if one["predicted_speedup"] else ""
        yield (
            f"published for {one['ranks']} ranks: {one['hours']} h, {one['speedup']}x; predicted {one['predicted_h']:.2f} h "
            f"({one['error']:+.1%}){gain}, with {one['reduction']} ({one['source']})"
        )
    yield from prediction.notes


def explanation(prediction: Prediction) -> Iterator[str]:
    """The formulas with their numbers, for the largest number of ranks."""
    predictor, question, count = prediction.predictor, prediction.question, prediction.rows[-1].ranks
    network, shape = predictor.network, Shape.of(count, question.per_node)
    yield f"\nstep = {' + '.join(_parts_of(prediction.rows))}"
    yield (
        f"p = {count}, g = {shape.per_node}, m = {shape.nodes}; a1 = {_first(network.inside.latency_s)} s, "
        f"b1 = {_first(network.inside.s_per_byte)} s/byte, a2 = {_first(network.between.latency_s)} s, "
        f"b2 = {_first(network.between.s_per_byte)} s/byte, one pair {_first(network.alone.s_per_byte)} s/byte, "
        f"c = {_first(network.s_per_added_byte)} s/byte, o = {_first(network.gap_s)} s; with 32 senders "
        f"incast {_first(network.incast)}, congestion {_first(network.congestion)}"
    )
    buckets = predictor.buckets(count)
    yield f"buckets: {', '.join(f'{size / 1e6:.2f} MB ready at {ready:.0%}' for size, ready in buckets)}"
    for reduction in question.reductions if count > 1 else []:
        times = [float(np.ravel(predictor.allreduce_s(count, reduction, size))[0]) for size, _ in buckets]
        text, overlap = predictor.formula_text(count, reduction), predictor.overlap(count, reduction)
        follows = f"; a bucket that directly follows another takes {overlap:.0%} of that" if overlap < 0.995 else ""
        summed = " + ".join(f"{1e3 * time:.2f}" for time in times)
        yield f"{reduction}: {text} = {summed} = {1e3 * sum(times):.2f} ms{follows}"


def check_in_words(one: dict[str, Any]) -> str:
    """A recorded run compared with its prediction, in a line."""
    inside = "inside" if one["low_s"] <= one["measured_s"] <= one["high_s"] else "outside"
    low, high = f"{1e3 * one['low_s']:.1f}", f"{1e3 * one['high_s']:.1f}"
    interval = f", {inside} of {low} to {high} ms" if low != high else ""
    return (
        f"{one['run']}: measured {1e3 * one['measured_s']:.1f} ms per step, predicted {1e3 * one['predicted_s']:.1f} ms "
        f"({one['error']:+.1%}){interval}"
    )


def _parts_of(rows: Sequence[PredictedStep]) -> list[str]:
    """The parts that any row has."""
    return [part for part in PARTS if any(part in row.parts for row in rows)]


def _cells(row: PredictedStep, parts: Sequence[str]) -> list[str]:
    low, high = f"{1e3 * row.low_s:.1f}", f"{1e3 * row.high_s:.1f}"
    return [
        str(row.ranks),
        row.reduction + (" *" if row.is_recommended and row.ranks > 1 else ""),
        str(row.place),
        str(row.global_batch),
        f"{1e3 * row.step_s:.1f}",
        f"{low} to {high}" if low != high else "-",
        *(f"{1e3 * row.parts[part]:.1f}" if part in row.parts else "-" for part in parts),
        f"{row.images_per_s:,.0f}",
        f"{row.speedup:.1f}x",
        f"{row.efficiency:.0%}",
    ]


def _amount(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _first(values: Any) -> str:
    return f"{float(np.ravel(values)[0]):.3g}"
