"""Runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from firetrain.errors import UserError
from firetrain.records import Run
from firetrain.report.grid import Grid

COLUMNS = (
    "run", "model", "dataset", "ranks", "reduction", "global batch", "peak rate", "epochs", "top-1", "target",
    "time-to-accuracy s", "train s", "evaluation s", "images/s", "exposed comm %", "speedup",
)  # fmt: skip


def rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A dict per run that has a summary, by COLUMNS, and its state; None where there is no such number.

    Speedup is by time-to-accuracy against the first row where both reached their target, and null elsewhere.
    """
    result: list[dict[str, Any]] = []
    for run in runs:
        result.append(_row(run, run.facts().get("state", "unknown"), run.summary()))
    baseline = result[0]["time-to-accuracy s"] if result else None
    for row in result:
        own = row["time-to-accuracy s"]
        row["speedup"] = baseline / own if baseline and own else None
    return result


def grid(runs: Sequence[Run]) -> Grid:
    """The rows as texts."""
    lines = []
    for row in rows(runs):
        cells = [_text(name, row[name]) for name in COLUMNS]
        if row["state"] != "completed":
            cells[0] += f" ({row['state']})"
        lines.append(cells)
    return Grid(COLUMNS, lines, names=3)


def select(paths: Sequence[str], found: Sequence[Run]) -> list[Run]:
    """The runs of these paths (or names in the results folder), or all that were found; UserError if there is none."""
    by_name = {run.name: run for run in found}
    runs = [by_name[path] if path in by_name else Run.open(Path(path)) for path in paths] or list(found)
    if not runs:
        raise UserError("no runs yet: firetrain launch quickstart makes one, here or in the folder given by --results")
    return runs


def _row(run: Run, state: str, summary: dict[str, Any]) -> dict[str, Any]:
    config = run.config()
    in_steps_s = sum(summary.get(f"{part}_s", 0.0) for part in ("data", "compute", "exposed_communication"))
    exposed_s = summary.get("exposed_communication_s", 0.0)
    return {
        "run": run.name,
        "state": state,
        "model": config.model.name,
        "dataset": config.data.name,
        "ranks": summary.get("world_size", run.facts().get("ranks")),
        "reduction": str(config.reduction.spec),
        "global batch": config.batch.global_size,
        "peak rate": config.peak_rate,
        "epochs": summary.get("epochs"),
        "top-1": summary.get("top1"),
        "target": config.target.top1,
        "time-to-accuracy s": summary.get("time_to_accuracy_s"),
        "train s": summary.get("train_s"),
        "evaluation s": summary.get("evaluation_s"),
        "images/s": summary.get("images_per_s"),
        "exposed comm %": 100 * exposed_s / in_steps_s if in_steps_s else None,
    }


def _text(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name in ("top-1", "target"):
        return f"{value:.2%}"
    if name in ("time-to-accuracy s", "train s", "evaluation s", "exposed comm %"):
        return f"{value:.1f}"
    return {"speedup": "{:.2f}x", "images/s": "{:,.0f}", "peak rate": "{:g}"}.get(name, "{}").format(value)
