"""The summary that is printed at the end of a run."""

from __future__ import annotations

import os
import shlex
from typing import Any

from rich.table import Table

from firetrain.config import load_config, shipped_configs
from firetrain.config.sections.strategy import DATA_PARALLEL
from firetrain.records import Run
from firetrain.records.parts import (
    BETWEEN_STEPS,
    CHECKPOINT,
    EVALUATION,
    LOST,
    OF_A_PLACEMENT,
    OF_A_STEP,
    OPENING,
    QUEUE,
    RESTART,
    STARTUP,
    Part,
)
from firetrain.words import counted

# time on the clock outside the recorded parts: logging, comparing checksums
_ON_THE_CLOCK = (*OF_A_STEP, OPENING, BETWEEN_STEPS, EVALUATION, CHECKPOINT, RESTART)


def headline(run: Run) -> str:
    """The result of a run in one sentence."""
    summary, target = run.summary(), run.config().target.top1
    top1 = f"top-1 {summary['top1']:.2%}"
    epochs = counted(summary["epochs"], "epoch")
    if target is None:
        return f"done: {top1} after {epochs}, {summary['elapsed_s']:.1f} s"
    if not summary["reached"]:
        return f"target {target:.2%} not reached: {top1} after {epochs}, {summary['elapsed_s']:.1f} s"
    took = f"time-to-accuracy {summary['time_to_accuracy_s']:.1f} s"
    after = summary.get("epochs_to_target", summary["epochs"])
    on = "" if after == summary["epochs"] else f" (reached after {counted(after, 'epoch')})"
    return f"target {target:.2%} reached: {top1} after {epochs}{on}; {took}"


def where_time_went(summary: dict[str, Any]) -> dict[Part, float]:
    """Seconds by part, which sum to the elapsed time; the parts of steps are rank 0's."""
    known = {part: summary.get(part.key, 0.0) for part in _ON_THE_CLOCK if part != BETWEEN_STEPS}
    seconds = known | {BETWEEN_STEPS: summary["elapsed_s"] - sum(known.values())}
    return {part: seconds[part] for part in _ON_THE_CLOCK if seconds[part] or part not in (RESTART, *OF_A_PLACEMENT)}


def time_table(run: Run) -> Table:
    """A table of the run's time by part."""
    summary = run.summary()
    table = Table("part", "seconds", "share", box=None, pad_edge=False, header_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    for part, seconds in where_time_went(summary).items():
        table.add_row(part.name, f"{seconds:.2f}", f"{seconds / summary['elapsed_s']:.1%}")
    table.add_row("total: first data access to last evaluation", f"{summary['elapsed_s']:.2f}", "", style="bold")
    if summary.get(LOST.key):
        table.add_row("of which in repeated steps", f"{summary[LOST.key]:.2f}", "")
    table.add_row("of which in and between steps", f"{summary['train_s']:.2f}", "")
    table.add_row("excluded: start-up and imports", f"{summary[STARTUP.key]:.2f}", "")
    if summary.get(QUEUE.key, 0.0) >= 1:
        table.add_row("excluded: waiting in the queue", f"{summary[QUEUE.key]:.2f}", "")
    return table


def details(run: Run) -> list[str]:
    """Lines about speed and skipped images."""
    summary = run.summary()
    ranks, steps = counted(summary["world_size"], "rank"), counted(summary["steps"], "step")
    lines = [f"{summary['images_per_s']:,.0f} images/s over {ranks}, {steps}"]
    if summary["bad_images"]:
        lines.append(f"skipped {counted(summary['bad_images'], 'unreadable image')}; the ranks' logs list them")
    return lines


def next_commands(run: Run) -> list[str]:
    """Suggestions for commands to run next."""
    config, path = run.config(), shlex.quote(os.path.relpath(run.path))
    # a shipped config only if no option has changed it
    is_shipped = config.name in shipped_configs() and load_config(config.name).config == config
    name = config.name if is_shipped else f"{path}/config.yaml"
    if config.strategy.servers:
        plain = f"--set strategy.name={DATA_PARALLEL}"
        plain += " --set 'strategy.parameters={}'" if config.strategy.parameters else ""
        return [
            f"firetrain report {path}",
            f"firetrain launch {name} {plain}",
            f"firetrain simulate {name} {plain} "
            f"--workers {run.summary()['world_size'] - config.strategy.servers.servers}",
        ]
    other = "ring" if config.reduction.name != "ring" else "tree"
    without = " --set 'reduction.parameters={}'" if config.reduction.parameters else ""
    return [
        f"firetrain report {path}",
        f"firetrain launch {name} --set reduction.name={other}{without}",
        f"firetrain topology show {other} --ranks {run.summary()['world_size']}",
    ]
