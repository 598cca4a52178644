"""Plots of a comparison: steps, scaling, crossings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firetrain.records.figure import write_figure
from firetrain.records.parts import OF_A_STEP
from firetrain.report.compared import Compared
from firetrain.report.comparison import rows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "osD^vP*Xph<>"


def plot(comparison: dict[str, Any], folder: Path) -> list[Path]:
    """Write the plots of a comparison into `folder`, as SVG and PNG; CannotCreate if that fails.

    Plots: steps (if steps were timed), scaling (if images/s are known), and crossings (if there are several numbers of nodes).
    """
    rows = [row for row in rows_of(comparison) if row.value_s is not None]
    to_target = comparison["measure"] == "time-to-accuracy"
    plots: dict[str, Any] = {} if to_target else {"steps": _steps}
    if any(row.images_per_s for row in rows):
        plots["scaling"] = _scaling
    if len({row.nodes for row in rows}) > 1:
        plots["crossings"] = _crossings
    written = []
    for name, draw in plots.items():
        written += _figure(rows, draw, folder / name, comparison) if rows else []
    return written


def _figure(rows: Sequence[Compared], draw: Any, path: Path, comparison: dict[str, Any]) -> list[Path]:
    """Write a figure with axes for each config."""
    from matplotlib.figure import Figure

    configs = list(dict.fromkeys(row.config for row in rows))
    figure = Figure(figsize=(6.4 * len(configs) + 2, 4.8), layout="constrained")
    for axes, config in zip(figure.subplots(1, len(configs), squeeze=False)[0], configs, strict=True):
        draw(axes, [row for row in rows if row.config == config], comparison["measure"])
        axes.set_title(config)
        axes.spines[["top", "right"]].set_visible(False)
    labels: dict[str, Any] = {}
    for axes in figure.axes:
        handles, names = axes.get_legend_handles_labels()
        labels |= dict(zip(names, handles, strict=True))
    figure.legend(labels.values(), labels.keys(), loc="outside right center", frameon=False)
    return write_figure(figure, path, ".svg", ".png")


def _steps(axes: Axes, rows: Sequence[Compared], measure: str) -> None:
    """A bar per strategy, reduction and world, stacked by parts of a step, with the step's interval."""
    rows = sorted(rows, key=lambda row: (row.ranks, row.nodes, row.value_s))
    heights, labels, at = [], [], 0.0
    before = None
    for row in rows:
        at += 1.0 if before in (None, (row.nodes, row.ranks)) else 1.8
        before = (row.nodes, row.ranks)
        heights.append(at)
        labels.append(f"{row.method}  {row.nodes} x {row.ranks // row.nodes}")
    left = [0.0] * len(rows)
    for key, name, color, _ in (part for part in OF_A_STEP if any(row.parts[part.key] for row in rows)):
        widths = [(row.parts[key] or 0.0) * 1e3 for row in rows]
        axes.barh(heights, widths, left=left, height=0.8, label=name, color=color)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for row, height in zip(rows, heights, strict=True):
        if row.low_s is not None and row.high_s is not None:
            axes.plot([row.low_s * 1e3, row.high_s * 1e3], [height, height], color="black", linewidth=1)
    axes.set_yticks(heights, labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("ms per step; nodes x ranks each; line: 95 % interval")


def _scaling(axes: Axes, rows: Sequence[Compared], measure: str) -> None:
    """Images per second against ranks, with the ideal line."""
    alone = next((row.images_per_s for row in rows if row.ranks == 1), None)
    counts = sorted({row.ranks for row in rows})
    if alone:
        axes.plot(counts, [alone * count for count in counts], color="grey", linestyle=":", label="ideal")
    for number, name, own in _lines(rows):
        points = [(row.ranks, row.images_per_s) for row in own if row.images_per_s]
        axes.plot(*zip(*points, strict=True), **_look(number, name))
    axes.set(xlabel="ranks", ylabel="images/s", xscale="log", yscale="log")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.grid(alpha=0.3)


def _crossings(axes: Axes, rows: Sequence[Compared], measure: str) -> None:
    """The compared time against nodes; where two lines cross, another reduction becomes faster."""
    scale, unit = (1.0, "time-to-accuracy, s") if measure == "time-to-accuracy" else (1e3, "ms per step")
    for number, name, own in _lines(rows):
        own = [row for row in own if row.value_s is not None]  # no point if the target was not reached
        axes.plot([row.nodes for row in own], [(row.value_s or 0) * scale for row in own], **_look(number, name))
        low = [(row.value_s if row.low_s is None else row.low_s or 0) * scale for row in own]  # type: ignore[operator]
        high = [(row.value_s if row.high_s is None else row.high_s or 0) * scale for row in own]  # type: ignore[operator]
        axes.fill_between([row.nodes for row in own], low, high, alpha=0.15, color=f"C{number % 10}")
    counts = sorted({row.nodes for row in rows})
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set(xlabel="nodes", ylabel=f"{unit}; band: 95 % interval")
    axes.grid(alpha=0.3)


def _lines(rows: Sequence[Compared]) -> list[tuple[int, str, list[Compared]]]:
    """(number, strategy and reduction, their rows by size); the row of one rank alone is in every line."""
    alone = [row for row in rows if row.ranks == 1]
    names = sorted({row.method for row in rows if row.ranks > 1}) or [row.method for row in alone]
    found = []
    for number, name in enumerate(names):
        own = [row for row in rows if row.method == name and row.ranks > 1]
        # a line has at most one point with a single node
        first = alone if not any(row.nodes == 1 for row in own) else []
        found.append((number, name, sorted([*first, *own], key=lambda row: (row.nodes, row.ranks))))
    return found


def _look(number: int, name: str) -> dict[str, Any]:
    return {
        "label": name, "color": f"C{number % 10}", "marker": _MARKERS[number % len(_MARKERS)], "markersize": 4,
        "linestyle": "--" if name in ("native", "horovod") else "-",
    }  # fmt: skip
