"""Simulated policies of a parameter server, as a table and as plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING

from firetrain.errors import CannotCreate
from firetrain.records.figure import write_figure
from firetrain.records.file import cannot_write
from firetrain.records.parts import COMPUTE
from firetrain.report.statistics import Estimate, median_estimate
from firetrain.report.target import in_words, interval_in_words, seconds_or_never
from firetrain.report.text_table import TextTable
from firetrain.simulate.outcome import Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
        between = _interval(times)
        reached = sum(one.target_s is not None for one in own)
        rows.append([
            policy, in_words(times.value, _seconds) if times else "-", between, f"{reached} of {len(own)}" if has_target else "-",
            f"{100 * median(one.curve[-1].top1 for one in own):.1f}", f"{100 * median(one.idle_share for one in own):.0f}",
            f"{mean(one.mean_staleness for one in own):.2f}", str(max(max(one.staleness, default=0) for one in own)),
            f"{median(one.dropped for one in own):g}", f"{median(one.updates for one in own):g}",
            f"{1e3 * median(one.seconds_per_update for one in own):.1f}",
        ])  # fmt: skip
    return TextTable(_HEADINGS, rows, names=1)


def _interval(times: Estimate | None) -> str:
    if times is None or times.interval is None:
        return "-"
    return interval_in_words(*times.interval, _seconds)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}"


def write_plots(found: Sequence[Outcome], folder: Path) -> Iterator[Path]:
    """Write accuracy against time and against updates, staleness, and the workers' first gradients, as SVG and PNG.

    Of each policy the first seed is drawn. CannotCreate if the folder cannot be made.
    """
    with cannot_write(folder, CannotCreate):
        folder.mkdir(parents=True, exist_ok=True)
    first = {policy: own[0] for policy, own in by_policy(found).items()}
    for name, draw in (("accuracy", _accuracy), ("staleness", _staleness), ("workers", _workers)):
        figure = draw(first)
        for axes in figure.axes:
            axes.spines[["top", "right"]].set_visible(False)
        yield from write_figure(figure, folder / name, ".svg", ".png")


def _accuracy(first: Mapping[str, Outcome]) -> Figure:
    """Top-1 against virtual time, and against updates."""
    figure = _figure(11, 4.2)
    against_time, against_updates = figure.subplots(1, 2, sharey=True)
    for policy, one in first.items():
        top1 = [100 * point.top1 for point in one.curve]
        against_time.plot([point.seconds for point in one.curve], top1, label=policy, marker=".")
        against_updates.plot([point.updates for point in one.curve], top1, label=policy, marker=".")
    against_time.set(xlabel="virtual seconds", ylabel="top-1, %")
    against_updates.set(xlabel="updates", xscale="log")
    against_updates.legend(frameon=False, fontsize=8)
    return figure


def _staleness(first: Mapping[str, Outcome]) -> Figure:
    """The share of the gradients that had a staleness."""
    figure = _figure(8, 4.2)
    axes = figure.subplots()
    for policy, one in first.items():
        kept = sum(one.staleness.values())
        shares = [number / kept for number in one.staleness.values()]
        axes.plot(list(one.staleness), shares, label=policy, marker=".")
    axes.set(xlabel="staleness, updates", ylabel="share of gradients")
    axes.legend(frameon=False, fontsize=8)
    return figure


def _workers(first: Mapping[str, Outcome]) -> Figure:
    """Bars while workers compute; what is free between them is waiting, pushing and pulling."""
    figure = _figure(11, 1.1 + 1.3 * len(first))
    several = figure.subplots(len(first), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (policy, one) in zip(several, first.items(), strict=True):
        axes.barh(
            [span.worker for span in one.spans], [span.ended_s - span.began_s for span in one.spans],
            left=[span.began_s for span in one.spans], height=0.8, color=COMPUTE.colour, edgecolor="white",
        )  # fmt: skip
        axes.set_title(policy, fontsize=9, loc="left")
        axes.set(ylabel="worker", yticks=[])
        axes.invert_yaxis()
    several[-1].set(xlabel="virtual seconds")
    return figure


def _figure(width_in: float, height_in: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), layout="constrained")
