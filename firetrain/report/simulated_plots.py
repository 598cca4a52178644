"""Plots of simulated policies: accuracy, staleness, when workers computed, and what backup workers are worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from firetrain.config.spec import Spec
from firetrain.errors import CannotCreate
from firetrain.records.figure import write_figure
from firetrain.records.file import cannot_write
from firetrain.records.outcome import Outcome
from firetrain.records.parts import COMPUTE
from firetrain.report.plot import COLOURS, Plot, new_figure
from firetrain.report.simulated import by_policy


def plots(found: Sequence[Outcome]) -> list[Plot]:
    """The plots of these policies; of each policy the first seed is drawn, except for the seconds of an update."""
    first = [own[0] for own in by_policy(found).values()]
    several = {spare: own for own in by_policy(found).values() if (spare := _spare(own[0].policy)) is not None}
    drawn = [_accuracy(first), staleness_plot({one.policy: one.staleness for one in first}), _workers(first)]
    return [*drawn, _spares(several)] if len(several) > 1 else drawn


def write_plots(found: Sequence[Outcome], folder: Path) -> Iterator[Path]:
    """Write each plot as SVG and PNG into `folder`; CannotCreate if that fails."""
    with cannot_write(folder, CannotCreate):
        folder.mkdir(parents=True, exist_ok=True)
    for plot in plots(found):
        yield from write_figure(plot.figure, folder / plot.name, ".svg", ".png")


def staleness_plot(by_label: dict[str, dict[int, int]]) -> Plot:
    """The share of the gradients that had a staleness, a line for each label; `by_label`: gradients by staleness."""
    figure, (axes,) = new_figure()
    text = (
        "share of the gradients against their staleness, the updates between the weights that they were computed with "
    )
    plot = Plot("staleness", "Staleness of gradients", text + "and those that they changed.", figure)
    for number, (label, counts) in enumerate(by_label.items()):
        kept = sum(counts.values()) or 1
        xs = range(min(counts, default=0), max(counts, default=0) + 1)
        ys = [100 * counts.get(x, 0) / kept for x in xs]
        only = f", all {xs[0]}" if len(xs) == 1 else ""  # several such points hide one another
        axes.plot(xs, ys, marker=".", color=COLOURS[number % len(COLOURS)], label=label + only)
        plot.points += [(axes, x, y, f"{label}: {y:.3g} % had {x}") for x, y in zip(xs, ys, strict=True)]
    axes.set(xlabel="staleness, updates", ylabel="gradients, %", xlim=(-0.5, None), ylim=(0, None))
    axes.legend(frameon=False, fontsize=8)
    return plot


def _accuracy(first: Sequence[Outcome]) -> Plot:
    figure, axes = new_figure(columns=2)
    text = "top-1 accuracy against virtual seconds, and against updates, a line for each policy."
    plot = Plot("accuracy", "Accuracy of simulated policies", text, figure)
    for number, one in enumerate(first):
        colour = COLOURS[number % len(COLOURS)]
        for axis, unit, xs in (
            (axes[0], "seconds", [point.seconds for point in one.curve]),
            (axes[1], "updates", [float(point.updates) for point in one.curve]),
        ):
            ys = [100 * point.top1 for point in one.curve]
            axis.plot(xs, ys, marker=".", color=colour, label=one.policy)
            plot.points += [
                (axis, x, y, f"{one.policy}: {y:.4g} at {x:.4g} {unit}") for x, y in zip(xs, ys, strict=True)
            ]
    axes[0].set(xlabel="virtual seconds", ylabel="top-1 accuracy, %")
    axes[1].set(xlabel="updates", xscale="log")
    axes[1].tick_params(axis="x", which="minor", labelbottom=False)
    lines, labels = axes[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return plot


def _workers(first: Sequence[Outcome]) -> Plot:
    figure, several = new_figure(1.1 + 1.2 * len(first), rows=len(first))
    text = "bars while workers compute their first gradients; between them they wait, push and pull."
    plot = Plot("workers", "When workers compute", text, figure)
    end = min((one.spans[-1].arrived_s for one in first if one.spans), default=1.0)
    for axes, one in zip(several, first, strict=True):
        for span in one.spans:
            width = span.ended_s - span.began_s
            axes.barh(span.worker, width, left=span.began_s, height=0.8, color=COMPUTE.colour, edgecolor="white")
        axes.set_title(one.policy, fontsize=9, loc="left")
        axes.set(ylabel="worker", yticks=[], xlim=(0, end))
        axes.grid(visible=False)
        axes.invert_yaxis()
    several[-1].set(xlabel="virtual seconds")
    return plot


def _spares(several: dict[int, list[Outcome]]) -> Plot:
    """Seconds of an update, and images per second, by the number of backup workers (Chen et al. 2016, figure 8)."""
    figure, axes = new_figure(columns=2)
    workers = next(iter(several.values()))[0].workers
    text = f"seconds of an update, and images per second beside those without backup workers, of {workers} workers."
    plot = Plot("backup-workers", "What backup workers are worth", text, figure)
    spares = sorted(several)
    seconds = [median(one.seconds_per_update for one in several[spare]) for spare in spares]
    gains = [seconds[0] / one for one in seconds]  # an update has as many images with any number of backup workers
    for axis, values, label in ((axes[0], seconds, "seconds of an update"), (axes[1], gains, "images per second")):
        axis.plot(spares, values, "o-", color=COLOURS[0])
        axis.set(xlabel="backup workers", ylabel=label, xticks=spares, ylim=(0, 1.1 * max(values)))
        plot.points += [(axis, x, y, f"{x} backup: {y:.3g}") for x, y in zip(spares, values, strict=True)]
    axes[1].set(ylabel=f"images per second / those with {spares[0]} backup")
    return plot


def _spare(policy: str) -> int | None:
    """The backup workers of a synchronous policy; None for others."""
    spec = Spec.parse(policy)
    if spec.name == "backup":
        spare = dict(spec.parameters).get("spare", "")
        return int(spare) if spare.isdecimal() else None
    return 0 if spec.name == "sync" else None
