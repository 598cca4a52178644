"""Simulated policies of a parameter server, as a table and as plots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING

from firetrain.errors import CannotCreate
from firetrain.records.figure import write_figure
from firetrain.records.file import cannot_write
from firetrain.records.parts import COMPUTE
from firetrain.report.statistics import median_estimate
from firetrain.report.target import in_words, interval_in_words, seconds_or_never
from firetrain.report.text_table import TextTable
from firetrain.simulate.outcome import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEADINGS = (
    "policy", "target s", "95 %", "reached", "top-1 %", "idle %", "staleness", "largest", "dropped", "updates", "ms an update",
)  # fmt: skip


def by_policy(found: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """The outcomes of all seeds, by policy."""
    policies = dict.fromkeys(one.policy for one in found)
    return {policy: [one for one in found if one.policy == policy] for policy in policies}


def table(found: Sequence[Outcome], has_target: bool) -> TextTable:
    """A row for each policy: medians over seeds; staleness is the mean of all, `largest` the largest of all."""
    rows = []
    for policy, own in by_policy(found).items():
        times = median_estimate([seconds_or_never(one.target_s) for one in own]) if has_target else None
        between = (
            "-" if times is None or times.low is None else interval_in_words(times.low, times.high or 0.0, _seconds)
        )
        reached = sum(one.target_s is not None for one in own)
        rows.append([
            policy, in_words(times.value, _seconds) if times else "-", between, f"{reached} of {len(own)}" if has_target else "-",
            f"{100 * median(one.curve[-1].top1 for one in own):.1f}", f"{100 * median(one.idle_share for one in own):.0f}",
            f"{mean(one.mean_staleness for one in own):.2f}", str(max(max(one.staleness, default=0) for one in own)),
            f"{median(one.dropped for one in own):g}", f"{median(one.updates for one in own):g}",
            f"{1e3 * median(one.seconds_per_update for one in own):.1f}",
        ])  # fmt: skip
    return TextTable(_HEADINGS, rows, names=1)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}"


def write_plots(found: Sequence[Outcome], folder: Path) -> Iterator[Path]:
    """Write accuracy against time and against updates, staleness, and the workers' first gradients, as SVG and PNG."""
    from matplotlib.figure import Figure

    with cannot_write(folder, CannotCreate):
        folder.mkdir(parents=True, exist_ok=True)
    policies = by_policy(found)
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    against_time, against_updates = figure.subplots(1, 2, sharey=True)
    for policy, (first, *_) in policies.items():
        top1 = [100 * point.top1 for point in first.curve]
        against_time.plot([point.seconds for point in first.curve], top1, label=policy, marker=".")
        against_updates.plot([point.updates for point in first.curve], top1, label=policy, marker=".")
    against_time.set(xlabel="virtual seconds", ylabel="top-1, %")
    against_updates.set(xlabel="updates", xscale="log")
    against_updates.legend(frameon=False, fontsize=8)
    yield from _written(figure, [against_time, against_updates], folder / "accuracy")
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    for policy, (first, *_) in policies.items():
        kept = sum(first.staleness.values())
        axes.plot(
            list(first.staleness), [number / kept for number in first.staleness.values()], label=policy, marker="."
        )
    axes.set(xlabel="staleness, updates", ylabel="share of gradients")
    axes.legend(frameon=False, fontsize=8)
    yield from _written(figure, [axes], folder / "staleness")
    figure = Figure(figsize=(11, 1.1 + 1.3 * len(policies)), layout="constrained")
    several = list(figure.subplots(len(policies), 1, sharex=True, squeeze=False)[:, 0])
    for axes, (policy, (first, *_)) in zip(several, policies.items(), strict=True):
        _draw_workers(axes, policy, first)
    several[-1].set(xlabel="virtual seconds")
    yield from _written(figure, several, folder / "workers")


def _draw_workers(axes: Axes, policy: str, one: Outcome) -> None:
    """Bars while workers compute; what is free between them is waiting, pushing and pulling."""
    for span in one.spans:
        axes.barh(
            span.worker,
            span.ended_s - span.began_s,
            left=span.began_s,
            height=0.8,
            color=COMPUTE.colour,
            edgecolor="white",
        )
    axes.set_title(policy, fontsize=9, loc="left")
    axes.set(ylabel="worker", yticks=[])
    axes.invert_yaxis()


def _written(figure: object, several: Sequence[Axes], path: Path) -> Iterator[Path]:
    for axes in several:
        axes.spines[["top", "right"]].set_visible(False)
    yield from write_figure(figure, path, ".svg", ".png")  # type: ignore[arg-type]
