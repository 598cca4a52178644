"""A prediction as pictures: scaling with its intervals and what was measured, a step's parts, which reduction is fastest where,
foretold against measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from firetrain.errors import CannotCreate
from firetrain.predict.model import PARTS, Model, Row
from firetrain.predict.question import Question

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#3b6fb6", "#b9770e", "#d1495b", "#7d5ba6", "#8a93a6", "#5aa469")
_SIZES_BYTES = tuple(2**power for power in range(12, 31))


def write_plots(
    rows: Sequence[Row], model: Model, question: Question, folder: Path, title: str = "", checked: Sequence[dict[str, Any]] = ()
) -> Iterator[Path]:  # fmt: skip
    """scaling, parts and crossovers, and errors if there are checked runs, each as SVG and PNG; CannotCreate if that fails."""
    from matplotlib.figure import Figure

    own = [
        one for one in checked
        if (one["model"], one["global_batch"]) == (question.model, question.batch(one["ranks"]))
    ]  # fmt: skip
    drawings: dict[str, Callable[[Axes], None]] = {
        "scaling": lambda axes: _scaling(axes, rows, own), "parts": lambda axes: _parts(axes, rows),
        "crossovers": lambda axes: _crossovers(axes, model, question),
    }  # fmt: skip
    if checked:
        drawings["errors"] = lambda axes: draw_errors(axes, checked)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, draw in drawings.items():
            figure = Figure(figsize=(8, 4.6), layout="constrained")
            axes = figure.subplots()
            draw(axes)
            axes.set_title(title)
            axes.spines[["top", "right"]].set_visible(False)
            for suffix in (".svg", ".png"):
                path = folder / f"{name}{suffix}"
                figure.savefig(path, dpi=110)
                yield path
    except OSError as error:
        raise CannotCreate(f"cannot write plots into {folder}: {error.strerror}") from None


def _scaling(axes: Axes, rows: Sequence[Row], measured: Sequence[dict[str, Any]]) -> None:
    """Images per second over ranks: a line and a band of 95 % per reduction, points that were measured, and the ideal."""
    alone = next((row for row in rows if row.ranks == 1), None)
    names = list(dict.fromkeys(row.reduction for row in rows if row.ranks > 1))
    for number, name in enumerate(names):
        own = [row for row in rows if row.reduction == name]
        own = [alone, *own] if alone else own
        xs = [row.ranks for row in own]
        colour = f"C{number % 10}"
        axes.plot(xs, [row.images_per_s for row in own], "-" if number < 10 else "--", color=colour, label=name)
        points = [one for one in measured if one["reduction"] == name]
        speeds = [one["global_batch"] / one["measured_s"] for one in points]
        axes.plot([one["ranks"] for one in points], speeds, "o", color=colour, markeredgecolor="black")
        low = [row.global_batch / row.high_s for row in own]
        high = [row.global_batch / row.low_s for row in own]
        axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
    counts = sorted({row.ranks for row in rows})
    if alone:
        axes.plot(counts, [count * alone.images_per_s for count in counts], ":", color="grey", label="in proportion")
    note = "; dots: measured" if measured else ""
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel=f"images/s; band: 95 %{note}")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.25)


def _parts(axes: Axes, rows: Sequence[Row]) -> None:
    """A step's parts with the fastest reduction of each count."""
    best = [
        min((row for row in rows if row.ranks == count), key=lambda row: row.step_s)
        for count in sorted({r.ranks for r in rows})
    ]
    bottom = np.zeros(len(best))
    for part, colour in zip(PARTS, _COLOURS, strict=True):
        heights = np.array([1e3 * row.parts[part] for row in best])
        if heights.any():
            axes.bar(range(len(best)), heights, bottom=bottom, color=colour, label=part)
            bottom += heights
    axes.set_xticks(range(len(best)), [f"{row.ranks}\n{row.reduction}" for row in best], fontsize=7, rotation=45)
    axes.set(ylabel="ms per step, with the fastest reduction", yscale="linear")
    axes.legend(frameon=False, fontsize=8)


def draw_errors(axes: Axes, checked: Sequence[dict[str, Any]]) -> None:
    """A point for each checked run: the nearer to the diagonal the better."""
    seconds = [one[key] for one in checked for key in ("measured_s", "foretold_s")]
    ends = [0.8 * min(seconds), 1.25 * max(seconds)]
    axes.plot(ends, ends, ":", color="grey")
    for number, name in enumerate(sorted({one["reduction"] for one in checked})):
        own = [one for one in checked if one["reduction"] == name]
        foretold = np.array([[one["foretold_s"], one["low_s"], one["high_s"]] for one in own]).T
        bars = np.maximum(0.0, [foretold[0] - foretold[1], foretold[2] - foretold[0]])
        axes.errorbar(
            [one["measured_s"] for one in own], foretold[0], yerr=bars, fmt="o", color=f"C{number % 10}", label=name
        )
    axes.set(xscale="log", yscale="log", xlabel="measured, s", ylabel="foretold, s; bar: 95 %")
    axes.legend(frameon=False, fontsize=8)


def _crossovers(axes: Axes, model: Model, question: Question) -> None:
    """The fastest reduction for a buffer of some size on some ranks, by formulas: so many plans would take long to price."""
    from matplotlib.patches import Patch

    counts = [count for count in question.counts if count > 1]
    names = list(question.reductions)
    fastest = [
        [
            int(np.argmin([_first(model.exchange_s(count, name, size, planned=False)) for name in names]))
            for count in counts
        ]
        for size in _SIZES_BYTES
    ]
    colours = [_COLOURS[number % len(_COLOURS)] for number in range(len(names))]
    for y, line in enumerate(fastest):
        for x, winner in enumerate(line):
            axes.barh(y, 1, left=x - 0.5, height=1, color=colours[winner])
    axes.set_xticks(range(len(counts)), [str(count) for count in counts], fontsize=8, rotation=45)
    axes.set_yticks(range(0, len(_SIZES_BYTES), 3), [_size(size) for size in _SIZES_BYTES[::3]])
    axes.set(xlabel="ranks", ylabel="buffer")
    shown = sorted({winner for line in fastest for winner in line})
    handles = [Patch(color=colours[number], label=names[number]) for number in shown]
    axes.legend(handles=handles, frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), title="fastest")


def _first(value: Any) -> float:
    return float(np.ravel(value)[0])


def _size(size_bytes: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes} {unit}"
        size_bytes //= 1024
    return f"{size_bytes} GiB"
