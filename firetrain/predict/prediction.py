"""A prediction: rows by ranks, strategies and reductions, with notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firetrain.config import Config
from firetrain.config.comparison import split_specs
from firetrain.config.label import model_label
from firetrain.config.sections.strategy import DATA_PARALLEL
from firetrain.errors import UserError
from firetrain.predict.epochs import Points, epochs_of, epochs_through, parse_epochs
from firetrain.predict.extrapolation import extrapolations
from firetrain.predict.predicted_step import PredictedStep, as_json
from firetrain.predict.predictor import Predictor
from firetrain.predict.question import Question, WhatIf, parse_counts
from firetrain.predict.ranking import crossovers
from firetrain.records.profile import Profile, Recipe
from firetrain.strategy.layer import Layer

UNCALIBRATED = "UNCALIBRATED: link and compute speeds are assumed; measure them with firetrain bench profile"


@dataclass(frozen=True)
class Asked:
    """The options of `firetrain predict`."""

    ranks: str
    reductions: str
    strategies: str = DATA_PARALLEL
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
    predictor: Predictor
    rows: list[PredictedStep]
    notes: list[str]
    published: list[dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """The prediction for JSON, without rounding."""
        return {
            "calibrated": self.profile.calibrated, "model": self.question.model, "notes": self.notes,
            "rows": as_json(self.rows), "crossovers": crossovers(self.rows), "published": self.published,
        }  # fmt: skip


def predict(
    config: Config, profile: Profile, asked: Asked, checked: Sequence[str] = (), layers: Sequence[Layer] = ()
) -> Prediction:
    """Predict the steps of `config` from `profile`; `checked`: reductions to include in any case.

    `layers`: of the config's model, for strategies other than data-parallel. UserError for an invalid option or one without
    effect, or if no strategy suits any number of ranks.
    """
    label = model_label(config.model, config.data)
    recipe = next((one for one in profile.recipes if one.model == label), None)
    points, images = _epochs(config, recipe, asked)
    batch = None if asked.per_rank or config.batch.per_rank else config.batch.global_size
    counts, left_out = _within(parse_counts(asked.ranks), batch)
    question = Question.of(
        config, counts, list(dict.fromkeys([*split_specs(asked.reductions), *checked])),
        asked.ranks_per_node or profile.ranks_per_node or config.cluster.ranks_per_node, global_batch=batch,
        per_rank=asked.per_rank or config.batch.per_rank, what_if=WhatIf.parse(asked.what_if), images=images,
        epochs=epochs_through(points) if points else None, mtbf_h=asked.mtbf_h, checkpoint_s=asked.checkpoint_s or 10.0,
        price_per_node_hour=asked.price, watts_per_rank=asked.watts, strategies=split_specs(asked.strategies), layers=layers,
    )  # fmt: skip
    if set(question.strategies) != {DATA_PARALLEL}:
        question.what_if.refuse_oversubscribed_exchanges()
    predictor = Predictor(profile, question)
    rows = predictor.rows()
    if not rows:
        raise UserError("; ".join(predictor.notes))
    assumed = [] if profile.calibrated else [UNCALIBRATED]
    notes = [*assumed, *profile.notes, *left_out, *predictor.notes, *extrapolations(question, profile, points)]
    return Prediction(profile, question, predictor, rows, notes, _published(profile, recipe, rows))


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


def _published(profile: Profile, recipe: Recipe | None, rows: Sequence[PredictedStep]) -> list[dict[str, Any]]:
    """Published results with their predictions; speedups are of time-to-accuracy, relative to one rank with its own recipe."""
    if recipe is None:
        return []
    alone = next((row for row in rows if row.ranks == 1), None)
    alone_h = min(recipe.epochs)[1] * recipe.images / alone.images_per_s / 3600 if alone else None
    found = []
    for one in profile.published:
        row = next((row for row in rows if (row.ranks, row.method) == (one.ranks, one.reduction)), None)
        if one.model == recipe.model and row is not None and row.hours:
            found.append(
                {"ranks": one.ranks, "reduction": one.reduction, "hours": one.hours, "speedup": one.speedup,
                 "predicted_h": row.hours, "error": row.hours / one.hours - 1,
                 "predicted_speedup": alone_h / row.hours if alone_h else None, "source": one.source}
            )  # fmt: skip
    return found
