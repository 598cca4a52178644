"""A prediction: rows by ranks and reductions, with notes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firetrain.config import Config
from firetrain.config.comparison import split_reductions
from firetrain.errors import UserError
from firetrain.limits import MOST_RANKS
from firetrain.predict.epochs import Points, epochs_of, epochs_through, parse_epochs
from firetrain.predict.label import model_label
from firetrain.predict.predicted_step import PredictedStep, as_json, crossovers
from firetrain.predict.predictor import Predictor
from firetrain.predict.question import Question, WhatIf
from firetrain.records.profile import Profile, Recipe

UNCALIBRATED = "UNCALIBRATED: link and compute speeds are assumed; measure them with firetrain bench profile"


@dataclass(frozen=True)
class Asked:
    """The options of `firetrain predict`."""

    ranks: str
    reductions: str
    ranks_per_node: int | None = None
    per_rank: int | None = None
    what_if: str = ""
    epochs: str | None = None
    runs: Path | None = None
    images: int | None = None
    mtbf_h: float | None = None
    checkpoint_s: float | None = None
    price: float | None = None
    watts: float | None = None


@dataclass(frozen=True)
class Prediction:
    """The result of a prediction; `published`: published results with their predictions."""

    profile: Profile
    question: Question
    model: Predictor
    rows: list[PredictedStep]
    notes: list[str]
    published: list[dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """The prediction for JSON, without rounding."""
        return {
            "calibrated": self.profile.calibrated, "model": self.question.model, "notes": self.notes,
            "rows": as_json(self.rows), "crossovers": crossovers(self.rows), "published": self.published,
        }  # fmt: skip


def predict(config: Config, profile: Profile, asked: Asked, checked: Sequence[str] = ()) -> Prediction:
    """Predict the steps of `config` from `profile`; `checked`: reductions to include in any case.

    UserError for an invalid option or one without effect.
    """
    label = model_label(config.model, config.data)
    recipe = next((one for one in profile.recipes if one.model == label), None)
    points, images = _epochs(config, recipe, asked)
    batch = None if asked.per_rank or config.batch.per_rank else config.batch.global_size
    counts, left_out = _within(parse_counts(asked.ranks), batch)
    question = Question.of(
        config, counts, list(dict.fromkeys([*split_reductions(asked.reductions), *checked])),
        asked.ranks_per_node or profile.ranks_per_node or config.cluster.ranks_per_node, global_batch=batch,
        per_rank=asked.per_rank or config.batch.per_rank, what_if=WhatIf.parse(asked.what_if), images=images,
        epochs=epochs_through(points) if points else None, mtbf_h=asked.mtbf_h, checkpoint_s=asked.checkpoint_s or 10.0,
        price_per_node_hour=asked.price, watts_per_rank=asked.watts,
    )  # fmt: skip
    model = Predictor(profile, question)
    rows = model.rows()
    assumed = [] if profile.calibrated else [UNCALIBRATED]
    notes = [*assumed, *profile.notes, *left_out, *_limits(question, profile, points)]
    return Prediction(profile, question, model, rows, notes, _published(profile, recipe, rows))


def parse_counts(text: str) -> list[int]:
    """Numbers of ranks: `1:128` doubles from the first to the last, `1,3,6` is a list. UserError if it is neither."""
    first, colon, last = text.partition(":")
    parts = [first, last] if colon else text.split(",")
    if not all(re.fullmatch(r"\s*[0-9]{1,18}\s*", part) for part in parts):
        raise UserError(f"--ranks: expected a list of numbers, 1,3,6, or a range, 1:1024 (got {text!r})")
    numbers = [int(part) for part in parts]
    if not all(1 <= number <= MOST_RANKS for number in numbers) or (colon and numbers[0] > numbers[1]):
        raise UserError(f"--ranks: must be from 1 to {MOST_RANKS}, the smaller first (got {text})")
    if not colon:
        return sorted(set(numbers))
    found = [numbers[0]]
    while found[-1] * 2 <= numbers[1]:
        found.append(found[-1] * 2)
    return found


def _epochs(config: Config, recipe: Recipe | None, asked: Asked) -> tuple[Points, int | None]:
    """(epochs to the target by batch, images per epoch), from the options, recorded runs, or the profile's recipe."""
    points: Points = ()
    if asked.epochs:
        points = parse_epochs(asked.epochs)
    elif asked.runs:
        points = epochs_of(asked.runs, config)
    elif recipe:
        points = recipe.epochs
    images = asked.images or (recipe.images if recipe else None)
    useless = {"--mtbf-h": asked.mtbf_h, "--price": asked.price, "--watts": asked.watts, "--epochs": asked.epochs,
               "--runs": asked.runs, "--images": images}  # fmt: skip
    if not (points and images) and (given := [name for name, value in useless.items() if value]):
        raise UserError(f"{', '.join(given)}: hours to the target need both --epochs (or --runs) and --images")
    return points, images


def _within(counts: list[int], batch: int | None) -> tuple[list[int], list[str]]:
    """The counts with at least one image per rank, and a note about the others. UserError if there are none."""
    beyond = [count for count in counts if batch and count > batch]
    kept = [count for count in counts if count not in beyond]
    skipped = ", ".join(f"{count:,}" for count in beyond)
    if not kept:
        raise UserError(f"--ranks {skipped}: more ranks than images in the batch ({batch}); use --per-rank")
    note = f"skipped {skipped} ranks: more ranks than images in the batch ({batch}); use --per-rank"
    return kept, [note] if beyond else []


def _limits(question: Question, profile: Profile, points: Points) -> list[str]:
    """Notes about extrapolation beyond the measurements."""
    notes = []
    measured = sorted(step.batch_per_rank for step in profile.steps if step.model == question.model)
    shares = sorted({-(-question.batch(count) // count) for count in question.counts})
    if measured and (shares[0] < measured[0] or shares[-1] > measured[-1]):
        notes.append(
            f"extrapolation: compute time was measured for {', '.join(map(str, measured))} images per rank, predicted for "
            f"{' to '.join(map(str, sorted({shares[0], shares[-1]})))}"
        )
    levels = {link.level for link in profile.links}
    if max(question.counts) > question.per_node and "between nodes" not in levels:
        notes.append("the profile has no links between nodes: links inside a node are used instead")
    if question.per_node > 1 and max(question.counts) > 1 and "inside a node" not in levels:
        notes.append("the profile has no links inside a node: links between nodes are used instead")
    notes += _beyond_epochs(question, points)
    if not profile.message_gap and max(question.counts) > 1:
        notes.append(
            "per-message overhead was not measured; its upper bound, half the latency, is assumed (measure it with firetrain "
            "bench link)"
        )
    return notes


def _beyond_epochs(question: Question, points: Points) -> list[str]:
    if not points:
        return []
    asked = [question.batch(count) for count in question.counts]
    known = [batch for batch, _ in points]
    notes = []
    if max(asked) > max(known):
        notes.append(f"extrapolation: epochs are known for batches up to {max(known)}, predicted up to {max(asked)}")
    if min(asked) < min(known):
        notes.append(f"extrapolation: epochs are known for batches from {min(known)}, predicted from {min(asked)}")
    return notes


def _published(profile: Profile, recipe: Recipe | None, rows: Sequence[PredictedStep]) -> list[dict[str, Any]]:
    """Published results with their predictions; speedups are of time-to-accuracy, relative to one rank with its own recipe."""
    if recipe is None:
        return []
    alone = next((row for row in rows if row.ranks == 1), None)
    alone_h = min(recipe.epochs)[1] * recipe.images / alone.images_per_s / 3600 if alone else None
    found = []
    for one in profile.published:
        row = next((row for row in rows if (row.ranks, row.reduction) == (one.ranks, one.reduction)), None)
        if one.model == recipe.model and row is not None and row.hours:
            found.append(
                {"ranks": one.ranks, "reduction": one.reduction, "hours": one.hours, "speedup": one.speedup,
                 "predicted_h": row.hours, "error": row.hours / one.hours - 1,
                 "predicted_speedup": alone_h / row.hours if alone_h else None, "source": one.source}
            )  # fmt: skip
    return found
