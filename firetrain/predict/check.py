"""A prediction held against a recorded run."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from firetrain.errors import CannotCreate, UserError
from firetrain.predict.label import model_label
from firetrain.predict.model import Model, Question
from firetrain.records import Run
from firetrain.records.profile import Profile

HISTORY = "prediction-errors.jsonl"


def check(run: Run, profile: Profile) -> dict[str, Any]:
    """The run's median step beside what is foretold for what it did; UserError if it has too few steps."""
    config, steps, summary = run.config(), run.metrics("step"), run.summary()
    if len(steps) < 2:
        raise UserError(f"{run.path} has {len(steps)} logged steps: too few to compare with")
    ranks = int(run.facts()["ranks"])
    nodes = int(summary.get("nodes") or config.cluster.nodes)
    asked = Question(
        model_label(config), [ranks], [str(config.reduction.spec)], ranks // nodes, config.batch.global_size,
        bucket_bytes=bucket_bytes(config.reduction.bucket_mib),
    )  # fmt: skip
    row = Model(profile, asked).rows()[-1]
    measured_s = median(step["step_s"] for step in steps[1:])  # the first line holds the warm-up
    return {
        "run": run.name, "ranks": ranks, "reduction": row.reduction, "measured_s": measured_s, "foretold_s": row.step_s,
        "low_s": row.low_s, "high_s": row.high_s, "error": row.step_s / measured_s - 1,
    }  # fmt: skip


def keep(found: dict[str, Any], folder: Path) -> Path:
    """Add it to the history of errors in `folder`; CannotCreate if that fails."""
    path = folder / HISTORY
    try:
        with path.open("a") as file:
            file.write(json.dumps(found) + "\n")
    except OSError as error:
        raise CannotCreate(f"cannot write {path}: {error.strerror}") from None
    return path


def bucket_bytes(bucket_mib: float | None) -> int:
    """As a config has it; left open, the largest that training chooses."""
    return int((bucket_mib or 4) * 2**20)
