"""The plots of a report: accuracy, loss and learning rate over runs, parts of steps, scaling."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from firetrain.errors import CannotCreate
from firetrain.records.figure import write_figure
from firetrain.records.file import cannot_write
from firetrain.records.parts import COMPUTE, OF_A_STEP
from firetrain.report.groups import Group, settings
from firetrain.report.history import History, Row
from firetrain.report.parameter_servers import staleness_of
from firetrain.report.plot import COLOURS, INK, Plot, new_figure, plain_text
from firetrain.report.report import Report
from firetrain.report.simulated_plots import plots as simulated_plots
from firetrain.report.simulated_plots import staleness_plot
from firetrain.words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# maximum number of lines, so that their colours differ; the description states how many are drawn
_LINES = 12
_POINTS = 80
# settings in which the points of a scaling line differ
_SIZES = ("ranks", "cluster.nodes", "cluster.ranks_per_node")


def plots(report: Report) -> list[Plot]:
    """The plots for which the runs have values."""
    drawn = [group for group in report.groups if any(one.evaluations for one in group.runs)][:_LINES]
    ended = [group for group in report.groups if group.middle(COMPUTE.key)]
    found = []
    if drawn:
        more = len(report.groups) - len(drawn)
        note = f" The first {len(drawn)} of {len(report.groups)} configs." if more > 0 else ""
        found += [
            _curves(report, drawn, "accuracy-time", "Accuracy against time", "elapsed_s", "seconds", _top1, note),
            _curves(report, drawn, "accuracy-epochs", "Accuracy against epochs", "epoch", "epochs", _top1, note),
            _curves(report, drawn, "loss", "Training loss", "epoch", "epochs", _losses, note),
            _curves(report, drawn, "learning-rate", "Learning rate", "epoch", "epochs", _rates, note),
        ]
    if ended:
        found.append(_steps(ended))
    if len({group.first.ranks for group in ended}) > 1:
        found.append(_scaling(ended))
    if staleness := staleness_of(report.groups[:_LINES]):
        found.append(staleness_plot(staleness))
    if report.simulated:
        found += [replace(plot, name=f"simulated-{plot.name}") for plot in simulated_plots(report.simulated)]
    return found


def write_plots(report: Report, folder: Path) -> Iterator[Path]:
    """Write each plot as SVG and PNG into `folder`; CannotCreate if that fails."""
    with cannot_write(folder, CannotCreate):
        folder.mkdir(parents=True, exist_ok=True)
    for plot in plots(report):
        yield from write_figure(plot.figure, folder / plot.name, ".svg", ".png")


def _top1(one: History) -> list[Row]:
    return [{**row, "value": 100 * row["top1"]} for row in one.evaluations]


def _losses(one: History) -> list[Row]:
    return [{**row, "value": row["loss"]} for row in _in_epochs(one) if row.get("loss") is not None]


def _rates(one: History) -> list[Row]:
    return [{**row, "value": row["learning_rate"]} for row in _in_epochs(one) if row.get("learning_rate") is not None]


def _in_epochs(one: History) -> list[Row]:
    """At most `_POINTS` of the logged steps, with fractional epochs."""
    rows = one.steps
    if not rows or not one.evaluations:
        return []
    per_epoch = one.evaluations[-1]["step"] / one.evaluations[-1]["epoch"]
    return [{**row, "epoch": row["step"] / per_epoch} for row in _thin(rows)]


def _thin(rows: Sequence[Row]) -> list[Row]:
    """At most `_POINTS` rows at equal distances, including the last."""
    if len(rows) <= _POINTS:
        return list(rows)
    return [rows[round(index)] for index in np.linspace(0, len(rows) - 1, _POINTS)]


def _curves(
    report: Report,
    groups: Sequence[Group],
    name: str,
    title: str,
    across: str,
    unit: str,
    rows_of: Callable[[History], list[Row]],
    note: str,
) -> Plot:
    """A plot with a line per config (the first seed) and a band that spans all seeds."""
    figure, (axes,) = new_figure()
    value = {"loss": "loss", "learning-rate": "learning rate"}.get(name, "top-1 accuracy, %")
    seeds = any(len(group.runs) > 1 for group in groups)
    band = " The line is the first seed, the band spans all seeds." if seeds else ""
    plot = Plot(name, title, f"{value} against {unit}, a line for each config.{band}{note}", figure)
    for number, group in enumerate(groups):
        runs = [rows for one in group.runs if (rows := _thin(rows_of(one)))]
        if not runs:
            continue
        colour = COLOURS[number % len(COLOURS)]
        xs, ys = _columns(runs[0], across)
        axes.plot(xs, ys, color=colour, label=plain_text(group.label), linestyle="-" if number < len(COLOURS) else "--")
        if len(runs) > 1:
            end = min(rows[-1][across] for rows in runs)
            grid = np.linspace(xs[0], end, 60)
            stacked = np.array([np.interp(grid, *_columns(rows, across)) for rows in runs])
            axes.fill_between(grid, stacked.min(axis=0), stacked.max(axis=0), color=colour, alpha=0.15, linewidth=0)
        plot.points += [(axes, x, y, f"{group.label}: {y:.4g} at {x:.4g} {unit}") for x, y in zip(xs, ys, strict=True)]
    targets = {group.first.config.target.top1 for group in groups} - {None}
    if value.startswith("top-1") and len(targets) == 1:
        axes.axhline(100 * float(targets.pop() or 0), color=INK, linewidth=0.8, linestyle=":", label="target")
    axes.set(xlabel=unit, ylabel=value)
    if name == "loss":
        plot.description += _cut_off(axes)
    if axes.lines:
        axes.legend(frameon=False, fontsize=8, loc="best")
    return plot


def _cut_off(axes: Axes) -> str:
    """Limit the axis, because one diverging loss would flatten all curves; returns a sentence about it."""
    lines = [np.asarray(line.get_ydata(), dtype=float) for line in axes.lines]
    limit = 2 * max((ys[0] for ys in lines if len(ys)), default=0.0)
    if not limit or not any((ys > limit).any() for ys in lines):
        return ""
    axes.set_ylim(0, limit)
    return f" Cut off above {limit:.3g}."


def _columns(rows: Sequence[Row], across: str) -> tuple[list[float], list[float]]:
    return [row[across] for row in rows], [row["value"] for row in rows]


def _steps(groups: Sequence[Group]) -> Plot:
    """Stacked bars with the parts of rank 0's steps."""
    kept = groups[: 2 * _LINES]
    figure, (axes,) = new_figure()
    figure.set_figheight(max(2.2, 0.9 + 0.32 * len(kept)))
    more = f" The first {len(kept)} of {len(groups)} configs." if len(kept) < len(groups) else ""
    text = f"milliseconds of rank 0's mean step by part, a bar for each config.{more}"
    plot = Plot("steps", "Where a step's time goes", text, figure)
    parts = [part for part in OF_A_STEP if any(group.middle(part.key) for group in kept)]
    for height, group in enumerate(kept):
        left = 0.0
        steps = group.middle("steps") or 1
        for key, name, colour, _ in parts:
            width = 1e3 * (group.middle(key) or 0.0) / steps
            axes.barh(height, width, left=left, color=colour, label=name if not height else None)
            plot.points.append((axes, left + width / 2, height, f"{group.label}: {name} {width:.1f} ms"))
            left += width
    labels = [f"{plain_text(_cut(group.label))}  {_ranks(group)}" for group in kept]
    axes.set_yticks(range(len(kept)), labels)
    axes.invert_yaxis()
    axes.set(xlabel="ms per step")
    axes.grid(visible=False, axis="y")
    figure.legend(frameon=False, fontsize=8, ncols=3, loc="outside upper center")
    return plot


def _scaling(groups: Sequence[Group]) -> Plot:
    """Images per second against ranks: a line per set of groups that differ only in ranks, and ideal lines."""
    figure, (axes,) = new_figure()
    text = "images per second against ranks, a line for each config and reduction; dotted: ideal."
    plot = Plot("scaling", "Scaling", text, figure)
    lines: dict[str, tuple[str, list[tuple[int, float]]]] = {}
    for group in groups:
        same = {key: value for key, value in settings(group.first).items() if key not in _SIZES}
        speed = group.middle("images_per_s")
        if speed:
            name, pairs = lines.setdefault(json.dumps(same, sort_keys=True), (group.label, []))
            pairs.append((group.first.ranks, speed))
    for number, (name, pairs) in enumerate(list(lines.values())[:_LINES]):
        pairs = sorted(pairs)
        xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(xs, ys, "o-", color=colour, label=plain_text(name))
        axes.plot(xs, [ys[0] / xs[0] * x for x in xs], ":", color=colour, linewidth=1)
        plot.points += [(axes, x, y, f"{name}: {y:,.0f} images/s on {x} ranks") for x, y in pairs]
    counts = sorted({group.first.ranks for group in groups})
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set(xlabel="ranks", ylabel="images/s", ylim=(0, None))
    axes.legend(frameon=False, fontsize=8)
    return plot


def _ranks(group: Group) -> str:
    return counted(group.first.ranks, "rank")


def _cut(text: str, length: int = 40) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
