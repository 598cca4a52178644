"""Epochs to a target accuracy at a batch, from some that are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from firetrain.config import Config
from firetrain.errors import UserError
from firetrain.predict.label import model_label
from firetrain.records import Run

Points = Sequence[tuple[int, float]]


def epochs_through(points: Points) -> Callable[[int], float]:
    """Epochs at a batch, E (1 + batch / B) by least squares through (batch, epochs); with one batch the same for all.

    The shape of Shallue et al. 2019; B is the critical batch. A larger batch never needs fewer epochs, and none fewer than the
    fewest that are known.
    """
    batches, epochs = np.array(points, dtype=float).T
    slope, least = np.polyfit(batches, epochs, 1) if len(set(batches)) > 1 else (0.0, epochs.mean())
    if slope <= 0:
        return lambda batch: float(epochs.mean())
    return lambda batch: max(float(epochs.min()), float(least + slope * batch))


def epochs_of(folder: Path, config: Config) -> Points:
    """(batch, median epochs to the target) of the runs below `folder` that train this model on this data to this target.

    UserError if there are none that reached it.
    """
    found: dict[int, list[float]] = {}
    for path in sorted(folder.rglob("run.json")):
        try:
            run = Run.open(path.parent)
            theirs, needed = run.config(), run.summary().get("epochs_to_target")
        except UserError:
            continue  # damaged or of another version: firetrain report names it
        if needed and _goal(theirs) == _goal(config):
            found.setdefault(theirs.batch.global_size, []).append(float(needed))
    if not found:
        raise UserError(
            f"no run below {folder} has trained {model_label(config)} on {config.data.name} to {config.target.top1}: firetrain "
            "report lists them"
        )
    return [(batch, median(epochs)) for batch, epochs in sorted(found.items())]


def _goal(config: Config) -> tuple[str, str, float | None]:
    return model_label(config), config.data.name, config.target.top1
