"""Plots of a prediction: scaling with intervals and measured points, parts of a step, fastest reductions, and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from firetrain.errors import CannotCreate
from firetrain.predict.check import method_of_line
from firetrain.predict.costs import first_of
from firetrain.predict.predicted_step import PredictedStep
from firetrain.predict.predictor import Predictor
from firetrain.predict.question import Question
from firetrain.records.figure import write_figure
from firetrain.records.file import cannot_write
from firetrain.records.parts import OF_A_PREDICTED_STEP

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZES_BYTES = tuple(2**power for power in range(12, 31))


def write_plots(
    rows: Sequence[PredictedStep], predictor: Predictor, question: Question, folder: Path, title: str = "",
    checked: Sequence[dict[str, Any]] = (),
) -> Iterator[Path]:  # fmt: skip
    """Write the plots into `folder`, as SVG and PNG; CannotCreate if that fails.

    Plots: scaling, parts, crossovers, and, if runs were checked, errors.
    """
    from matplotlib.figure import Figure

    own = [
        one for one in checked
        if (one["model"], one["global_batch"]) == (question.model, question.batch(one["ranks"]))
    ]  # fmt: skip
    plots: dict[str, Callable[[Axes], None]] = {
        "scaling": lambda axes: _scaling(axes, rows, own), "parts": lambda axes: _parts(axes, rows),
        "crossovers": lambda axes: _crossovers(axes, predictor, question),
    }  # fmt: skip
    if checked:
        plots["errors"] = lambda axes: draw_errors(axes, checked)
    with cannot_write(folder, CannotCreate):
        folder.mkdir(parents=True, exist_ok=True)
    for name, draw in plots.items():
        figure = Figure(figsize=(8, 4.6), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.set_title(title)
        axes.spines[["top", "right"]].set_visible(False)
        yield from write_figure(figure, folder / name, ".svg", ".png")


def _scaling(axes: Axes, rows: Sequence[PredictedStep], measured: Sequence[dict[str, Any]]) -> None:
    """Images per second against ranks: a line with a 95 % band per method, measured points, and the ideal line."""
    alone = next((row for row in rows if row.ranks == 1), None)
    names = list(dict.fromkeys(row.method for row in rows if row.ranks > 1))
    for number, name in enumerate(names):
        own = [row for row in rows if row.method == name]
        own = [alone, *own] if alone else own
        xs = [row.ranks for row in own]
        colour = f"C{number % 10}"
        axes.plot(xs, [row.images_per_s for row in own], "-" if number < 10 else "--", color=colour, label=name)
        points = [one for one in measured if method_of_line(one) == name]
        speeds = [one["global_batch"] / one["measured_s"] for one in points]
        axes.plot([one["ranks"] for one in points], speeds, "o", color=colour, markeredgecolor="black")
        low = [row.global_batch / row.high_s for row in own]
        high = [row.global_batch / row.low_s for row in own]
        axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
    counts = sorted({row.ranks for row in rows})
    if alone:
        axes.plot(counts, [count * alone.images_per_s for count in counts], ":", color="grey", label="ideal")
    note = "; dots: measured" if measured else ""
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel=f"images/s; band: 95 %{note}")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.25)


def _parts(axes: Axes, rows: Sequence[PredictedStep]) -> None:
    """The parts of the fastest step, for each number of ranks."""
    best = [
        min((row for row in rows if row.ranks == count), key=lambda row: row.step_s)
        for count in sorted({r.ranks for r in rows})
    ]
    bottom = np.zeros(len(best))
    for _, name, colour, _ in OF_A_PREDICTED_STEP:
        heights = np.array([1e3 * row.parts.get(name, 0.0) for row in best])
        if heights.any():
            axes.bar(range(len(best)), heights, bottom=bottom, color=colour, label=name)
            bottom += heights
    axes.set_xticks(range(len(best)), [f"{row.ranks}\n{row.method}" for row in best], fontsize=7, rotation=45)
    axes.set(ylabel="ms of the fastest step", yscale="linear")
    axes.legend(frameon=False, fontsize=8)


def draw_errors(axes: Axes, checked: Sequence[dict[str, Any]]) -> None:
    """A point per checked run, predicted against measured; the diagonal is a perfect prediction."""
    seconds = [one[key] for one in checked for key in ("measured_s", "predicted_s")]
    ends = [0.8 * min(seconds), 1.25 * max(seconds)]
    axes.plot(ends, ends, ":", color="grey")
    methods = [method_of_line(one) for one in checked]
    for number, name in enumerate(sorted(set(methods))):
        own = [one for one, method in zip(checked, methods, strict=True) if method == name]
        predicted = np.array([[one["predicted_s"], one["low_s"], one["high_s"]] for one in own]).T
        bars = np.maximum(0.0, [predicted[0] - predicted[1], predicted[2] - predicted[0]])
        axes.errorbar(
            [one["measured_s"] for one in own], predicted[0], yerr=bars, fmt="o", color=f"C{number % 10}", label=name
        )
    axes.set(xscale="log", yscale="log", xlabel="measured, s", ylabel="predicted, s; bar: 95 %")
    axes.legend(frameon=False, fontsize=8)


def _crossovers(axes: Axes, predictor: Predictor, question: Question) -> None:
    """The fastest reduction by buffer size and number of ranks, from formulas, because simulating all plans takes too long."""
    from matplotlib.patches import Patch

    counts = [count for count in question.counts if count > 1]
    names = list(question.reductions)
    fastest = [
        [
            int(np.argmin([first_of(predictor.allreduce_s(count, name, size, planned=False)) for name in names]))
            for count in counts
        ]
        for size in _SIZES_BYTES
    ]
    colours = [OF_A_PREDICTED_STEP[number % len(OF_A_PREDICTED_STEP)].colour for number in range(len(names))]
    for y, line in enumerate(fastest):
        for x, winner in enumerate(line):
            axes.barh(y, 1, left=x - 0.5, height=1, color=colours[winner])
    axes.set_xticks(range(len(counts)), [str(count) for count in counts], fontsize=8, rotation=45)
    axes.set_yticks(range(0, len(_SIZES_BYTES), 3), [_size(size) for size in _SIZES_BYTES[::3]])
    axes.set(xlabel="ranks", ylabel="buffer")
    shown = sorted({winner for line in fastest for winner in line})
    handles = [Patch(color=colours[number], label=names[number]) for number in shown]
    axes.legend(handles=handles, frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), title="fastest")


def _size(size_bytes: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes} {unit}"
        size_bytes //= 1024
    return f"{size_bytes} GiB"
