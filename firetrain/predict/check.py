"""A prediction held against a recorded run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from firetrain.config import Config
from firetrain.errors import CannotCreate, UserError
from firetrain.predict.label import model_label
from firetrain.predict.model import Model, Row
from firetrain.predict.question import Question
from firetrain.records import Run
from firetrain.records.profile import Profile

HISTORY = "prediction-errors.jsonl"
_KEYS = {"run", "model", "global_batch", "ranks", "reduction", "measured_s", "foretold_s", "low_s", "high_s"}


def foretell(
    config: Config, profile: Profile, reductions: Sequence[str], ranks: int, nodes: int, **more: Any
) -> list[Row]:
    """A row of the config's step for each reduction; `more` of the `Question`. UserError if nodes differ in their ranks."""
    if nodes < 1 or ranks % nodes:
        raise UserError(f"{ranks} ranks on {nodes} nodes: only as many on each node can be foretold")
    return Model(profile, Question.of(config, [ranks], reductions, ranks // nodes, **more)).rows()


def check(run: Run, profile: Profile) -> dict[str, Any]:
    """The run's median step beside what is foretold for what it did; UserError if it has too few steps."""
    config, steps, summary = run.config(), run.metrics("step"), run.summary()
    if len(steps) < 2:
        raise UserError(f"{run.path} has {len(steps)} logged steps: too few to compare with")
    if "ranks" not in run.facts():
        raise UserError(f"{run.path} does not say on how many ranks it ran")
    ranks = int(run.facts()["ranks"])
    nodes = int(summary.get("nodes") or config.cluster.nodes)
    (row,) = foretell(config, profile, [str(config.reduction.spec)], ranks, nodes)
    measured_s = median(step["step_s"] for step in steps[1:])  # the first line holds the warm-up
    return {
        "run": run.name, "model": model_label(config), "global_batch": row.global_batch, "ranks": ranks,
        "reduction": row.reduction, "measured_s": measured_s, "foretold_s": row.step_s, "low_s": row.low_s,
        "high_s": row.high_s, "error": row.step_s / measured_s - 1,
    }  # fmt: skip


def keep(found: Sequence[dict[str, Any]], folder: Path) -> Path:
    """Add them to the history of errors in `folder`; CannotCreate if that fails."""
    path = folder / HISTORY
    try:
        with path.open("a") as file:
            file.writelines(json.dumps(one) + "\n" for one in found)
    except OSError as error:
        raise CannotCreate(f"cannot write {path}: {error.strerror}") from None
    return path


def history(folder: Path) -> list[dict[str, Any]]:
    """All that was ever kept in `folder`, of each run the latest; UserError if it cannot be read."""
    path = folder / HISTORY
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        if not all(isinstance(line, dict) and line.keys() >= _KEYS for line in lines):
            raise ValueError("a line is not a checked run")
        return list({(one["run"], one["reduction"]): one for one in lines}.values())
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}; move it away to begin a new history") from None
