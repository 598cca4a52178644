"""One run, told after its end."""

from __future__ import annotations

import os
import shlex
from typing import Any

from rich.table import Table

from firetrain.config import shipped_configs
from firetrain.records import Run

_PARTS = {
    "compute_s": "compute",
    "exposed_communication_s": "exposed communication",
    "data_s": "waiting for data",
    "opening_s": "opening data, making the model",
    "other_s": "between steps",
    "evaluation_s": "evaluation",
    "checkpoint_s": "checkpoints",
    "restart_s": "starting again",
}


def headline(run: Run) -> str:
    """The result in one sentence."""
    summary, target = run.summary(), run.config().target.top1
    top1 = f"top-1 {summary['top1']:.2%}"
    if target is None:
        return f"done: {top1} after {summary['epochs']} epochs, {summary['elapsed_s']:.1f} s"
    if not summary["reached"]:
        return f"target {target:.2%} not reached: {top1} after {summary['epochs']} epochs, {summary['elapsed_s']:.1f} s"
    took = f"time-to-accuracy {summary['time_to_accuracy_s']:.1f} s"
    after = summary.get("epochs_to_target", summary["epochs"])
    on = "" if after == summary["epochs"] else f" (reached after {after})"
    return f"target {target:.2%} reached: {top1} after {summary['epochs']} epochs{on}; {took}"


def where_time_went(summary: dict[str, Any]) -> dict[str, float]:
    """Seconds by part, which sum to the elapsed time: steps as rank 0 saw them, evaluation, checkpoints, the rest."""
    known = {key: summary.get(key, 0.0) for key in _PARTS if key != "other_s"}
    parts = known | {"other_s": summary["elapsed_s"] - sum(known.values())}
    return {key: parts[key] for key in _PARTS if key != "restart_s" or parts[key]}


def time_table(run: Run) -> Table:
    """Where the run's time went, as a table."""
    summary = run.summary()
    table = Table("part", "seconds", "share", box=None, pad_edge=False, header_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    for key, seconds in where_time_went(summary).items():
        table.add_row(_PARTS[key], f"{seconds:.2f}", f"{seconds / summary['elapsed_s']:.1%}")
    table.add_row("sum: data opened to last evaluation", f"{summary['elapsed_s']:.2f}", "", style="bold")
    if summary.get("lost_s"):
        table.add_row("of it for steps that were done again", f"{summary['lost_s']:.2f}", "")
    table.add_row("of it in steps and between them", f"{summary['train_s']:.2f}", "")
    table.add_row("before it: start-up and imports", f"{summary['startup_s']:.2f}", "")
    if summary.get("queue_s", 0.0) >= 1:
        table.add_row("not in it: waiting in the queue", f"{summary['queue_s']:.2f}", "")
    return table


def details(run: Run) -> list[str]:
    """Speed, skipped images, and what to do next."""
    summary = run.summary()
    lines = [f"{summary['images_per_s']:,.0f} images/s over {summary['world_size']} ranks, {summary['steps']} steps"]
    if summary["bad_images"]:
        lines.append(f"{summary['bad_images']} images could not be read and were skipped; the ranks' logs name them")
    return lines


def next_commands(run: Run) -> list[str]:
    """Commands that a reader of the result may want."""
    config, path = run.config(), shlex.quote(os.path.relpath(run.path))
    name = config.name if config.name in shipped_configs() else f"{path}/config.yaml"
    other = "ring" if config.reduction.name != "ring" else "tree"
    return [
        f"firetrain report {path}",
        f"firetrain launch {name} --set reduction.name={other}",
        f"firetrain topology show {other} --ranks {run.summary()['world_size']}",
    ]
