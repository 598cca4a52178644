"""The screen of `firetrain watch`: curves, speed, parts of a step, time left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import linear_regression

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from firetrain.cluster import duration
from firetrain.config.sections.target import TargetSection
from firetrain.records.parts import OF_A_STEP
from firetrain.report.curve import bars
from firetrain.report.history import Row
from firetrain.words import counted

_ROWS, _FRAME = 7, 16
_NO_TREND = 3


def screen(
    name: str, state: str, target: TargetSection, steps: Sequence[Row], evaluations: Sequence[Row], width: int
) -> Group:
    """The screen of the run `name`; `steps` and `evaluations` are its metrics so far."""
    columns = max(10, width - _FRAME)
    panels = []
    if evaluations:
        goal = f", target {target.top1:.2%}" if target.top1 else ""
        newest = (
            f"top-1 accuracy: {evaluations[-1]['top1']:.2%} after {counted(evaluations[-1]['epoch'], 'epoch')}{goal}"
        )
        panels.append(_curve(newest, [100 * row["top1"] for row in evaluations], columns, 100.0))
    if steps:
        panels.append(_curve(f"loss: {steps[-1]['loss']:.4f}", [row["loss"] for row in steps], columns))
    return Group(Panel(Text(f"{name}: {state}"), padding=0), *panels, _numbers(state, target, steps, evaluations))


def to_the_end_s(target: TargetSection, evaluations: Sequence[Row]) -> float | None:
    """Seconds to the last epoch, at the mean speed so far; None before the first evaluation."""
    if not evaluations:
        return None
    last = evaluations[-1]
    return float((target.max_epochs - last["epoch"]) * last["elapsed_s"] / last["epoch"])


def to_the_target_s(target: TargetSection, evaluations: Sequence[Row]) -> float | None:
    """Seconds to the target, extrapolating the error rate of the last half of the epochs log-linearly.

    0 if the target was reached; None without a target or a trend, or if it is beyond the last epoch.
    """
    goal = target.top1
    if goal is None:
        return None
    if any(row["top1"] >= goal for row in evaluations):
        return 0.0
    newer = [row for row in evaluations[len(evaluations) // 2 :] if row["top1"] < 1]
    if len(newer) < _NO_TREND or goal == 1:
        return None
    xs, ys = [row["epoch"] for row in newer], [math.log(1 - row["top1"]) for row in newer]
    slope, at_zero = linear_regression(xs, ys)
    if slope >= 0:
        return None
    epoch = max((math.log(1 - goal) - at_zero) / slope, newer[-1]["epoch"])
    if epoch > target.max_epochs:
        return None
    last = evaluations[-1]
    return float((epoch - last["epoch"]) * last["elapsed_s"] / last["epoch"])


def _curve(title: str, values: Sequence[float], columns: int, highest: float | None = None) -> Panel:
    shown = (
        values
        if len(values) <= columns
        else [values[round(n * (len(values) - 1) / (columns - 1))] for n in range(columns)]
    )
    repeats = max(1, columns // len(shown))
    wide = [value for value in shown for _ in range(min(repeats, 8))]
    return Panel(Text("\n".join(bars(wide, _ROWS, highest)), no_wrap=True), title=title, title_align="left", padding=0)


def _numbers(state: str, target: TargetSection, steps: Sequence[Row], evaluations: Sequence[Row]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    if steps:
        now = steps[-1]
        table.add_row("epoch", f"{now['epoch'] + 1} of at most {target.max_epochs}, step {now['step']}")
        table.add_row("learning rate", f"{now['learning_rate']:.4g}")
        table.add_row("speed", f"{now['images_per_s']:,.0f} images/s, {1e3 * now['step_s']:.1f} ms per step")
        parts = " · ".join(f"{part.name} {now[part.key] / now['step_s']:.0%}" for part in OF_A_STEP if part.key in now)
        table.add_row("a step's time", parts)
    slow = evaluations[-1] if evaluations else {}
    if "slowest_rank" in slow and slow["mean_compute_s"]:
        more = slow["slowest_compute_s"] / slow["mean_compute_s"] - 1
        table.add_row("slowest rank", f"{slow['slowest_rank']}, computing {more:.1%} longer than the mean")
    ends, reaches = to_the_end_s(target, evaluations), to_the_target_s(target, evaluations)
    if state != "completed":  # a run limited to some steps may end before its last epoch
        table.add_row("to the last epoch", "-" if ends is None else duration(ends))
    if target.top1 is not None:
        text = (
            "-" if reaches is None else "reached" if not reaches else f"about {duration(reaches)} at the current trend"
        )
        table.add_row("to the target", text)
    return table
