"""Epochs to a target accuracy as a function of the batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from firetrain.config import Config
from firetrain.config.label import model_label
from firetrain.errors import UserError
from firetrain.limits import MOST_EPOCHS, MOST_IMAGES
from firetrain.records import Run
from firetrain.records.target import has_ended, or_never

Points = Sequence[tuple[int, float]]


def parse_epochs(text: str) -> Points:
    """Parse `32:64,1024:72`: epochs by batch, in the order given; UserError if it is malformed."""
    try:
        points = [(int(batch), float(count)) for batch, count in (part.split(":") for part in text.split(","))]
    except ValueError:
        points = []
    if not points or any(not 1 <= batch <= MOST_IMAGES or not 0 < count <= MOST_EPOCHS for batch, count in points):
        raise UserError(
            f"--epochs: expected BATCH:EPOCHS,..., for instance 32:64,1024:72, of at most {MOST_IMAGES} images and {MOST_EPOCHS} "
            f"epochs (got {text!r})"
        )
    return points


def epochs_through(points: Points) -> Callable[[int], float]:
    """Epochs as a function of the batch: E (1 + batch / B), fitted to the points by least squares; a constant for one batch.

    This is the form of Shallue et al. 2019; B is the critical batch. A larger batch never needs fewer epochs, and no batch
    needs fewer than the smallest known number.
    """
    batches, epochs = np.array(points, dtype=float).T
    slope, least = np.polyfit(batches, epochs, 1) if len(set(batches)) > 1 else (0.0, epochs.mean())
    if slope <= 0:
        return lambda batch: float(epochs.mean())
    return lambda batch: max(float(epochs.min()), float(least + slope * batch))


def epochs_of(folder: Path, config: Config) -> Points:
    """(batch, median epochs to the target) of the runs below `folder` that train this model on this data to this target.

    Runs that ended without reaching it count as never reaching it, unless they were limited to some steps: of a batch of which
    half of the runs missed the target nothing is known. UserError if that is true of all batches, or without a target.
    """
    if config.target.top1 is None:
        raise UserError("--runs: the config has no target (target.top1: null)")
    found: dict[int, list[float]] = {}
    for path in sorted(folder.rglob("run.json")):
        try:
            run = Run.open(path.parent)
            theirs, summary, reason = run.config(), run.summary(), str(run.facts().get("reason", ""))
        except UserError:
            continue  # damaged, or of another version: firetrain report lists such runs
        is_limited = theirs.target.max_steps is not None and not summary.get("epochs_to_target")
        if has_ended(run.state, reason) and not is_limited and _goal(theirs) == _goal(config):
            found.setdefault(theirs.batch.global_size, []).append(or_never(summary.get("epochs_to_target")))
    points = [(batch, median(epochs)) for batch, epochs in sorted(found.items())]
    if not (points := [(batch, epochs) for batch, epochs in points if math.isfinite(epochs)]):
        missed = ", or half of the runs of each batch missed it" if found else ""
        raise UserError(
            f"no run below {folder} has trained {model_label(config.model, config.data)} on {config.data.name} "
            f"to {config.target.top1}{missed}: firetrain report lists them"
        )
    return points


def _goal(config: Config) -> tuple[str, str, float | None]:
    return model_label(config.model, config.data), config.data.name, config.target.top1
