"""A running job on a whole terminal screen: curves, speed, where time goes, how long it will take."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from firetrain.cluster import duration
from firetrain.config import Config
from firetrain.report.curve import bars
from firetrain.report.history import Row

_ROWS, _FRAME = 7, 16
_NO_TREND = 3


def screen(
    name: str, state: str, config: Config, steps: Sequence[Row], evaluations: Sequence[Row], width: int
) -> Group:
    """What to show of a run named `name`: `steps` and `evaluations` are its lines so far."""
    columns = max(10, width - _FRAME)
    panels = []
    if evaluations:
        target = f", target {config.target.top1:.2%}" if config.target.top1 else ""
        newest = f"top-1 accuracy: {evaluations[-1]['top1']:.2%} after {evaluations[-1]['epoch']} epochs{target}"
        panels.append(_curve(newest, [100 * row["top1"] for row in evaluations], columns, 100.0))
    if steps:
        panels.append(_curve(f"loss: {steps[-1]['loss']:.4f}", [row["loss"] for row in steps], columns))
    return Group(Panel(Text(f"{name}: {state}"), padding=0), *panels, _numbers(config, steps, evaluations))


def to_the_end_s(config: Config, evaluations: Sequence[Row]) -> float | None:
    """Seconds, at the mean speed of the epochs so far; None before the first evaluation."""
    if not evaluations:
        return None
    last = evaluations[-1]
    return float((config.target.max_epochs - last["epoch"]) * last["elapsed_s"] / last["epoch"])


def to_the_target_s(config: Config, evaluations: Sequence[Row]) -> float | None:
    """Seconds, if the share of wrong answers goes on to fall as it did over the newer half of the epochs (a line on a log scale).

    0 if the target was reached; None where there is no target, no trend, or the epochs end before.
    """
    target = config.target.top1
    if target is None:
        return None
    if any(row["top1"] >= target for row in evaluations):
        return 0.0
    newer = [row for row in evaluations[len(evaluations) // 2 :] if row["top1"] < 1]
    if len(newer) < _NO_TREND or target == 1:
        return None
    xs, ys = [row["epoch"] for row in newer], [math.log(1 - row["top1"]) for row in newer]
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    slope = sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True)) / sum(
        (x - middle_x) ** 2 for x in xs
    )
    if slope >= 0:
        return None
    epoch = max(middle_x + (math.log(1 - target) - middle_y) / slope, newer[-1]["epoch"])
    if epoch > config.target.max_epochs:
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


def _numbers(config: Config, steps: Sequence[Row], evaluations: Sequence[Row]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    if steps:
        now = steps[-1]
        table.add_row("epoch", f"{now['epoch'] + 1} of at most {config.target.max_epochs}, step {now['step']}")
        table.add_row("learning rate", f"{now['learning_rate']:.4g}")
        table.add_row("speed", f"{now['images_per_s']:,.0f} images/s, {1e3 * now['step_s']:.1f} ms per step")
        parts = " · ".join(
            f"{name} {now[key] / now['step_s']:.0%}"
            for name, key in (
                ("compute", "compute_s"),
                ("exposed communication", "exposed_communication_s"),
                ("data", "data_s"),
            )
        )
        table.add_row("a step's time", parts)
    slow = evaluations[-1] if evaluations else {}
    if "slowest_rank" in slow and slow["mean_compute_s"]:
        more = slow["slowest_compute_s"] / slow["mean_compute_s"] - 1
        table.add_row("slowest rank", f"{slow['slowest_rank']}, computing {more:.1%} longer than the mean")
    ends, reaches = to_the_end_s(config, evaluations), to_the_target_s(config, evaluations)
    table.add_row("to the last epoch", "-" if ends is None else duration(ends))
    if config.target.top1 is not None:
        text = (
            "-"
            if reaches is None
            else "reached"
            if not reaches
            else f"about {duration(reaches)}, if it goes on like this"
        )
        table.add_row("to the target", text)
    return table
