"""Settings that are known to fail. Configs reject them; reports warn about them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from firetrain.config.sections.batch import BatchSection
from firetrain.config.sections.learning_rate import LearningRateSection
from firetrain.config.sections.model import ModelSection
from firetrain.config.sections.optimizer import OptimizerSection

# linear scaling is known to fail without batch norm if batch / base_batch exceeds this ratio
LINEAR_LIMIT = 8


class Failure(NamedTuple):
    """Settings that are known to fail (`what`), and what to use instead (`advice`)."""

    what: str
    advice: str


def known_failures(
    model: ModelSection,
    batch: BatchSection,
    rate: LearningRateSection,
    optimizer: OptimizerSection,
    is_normalised: bool | None = None,
) -> Iterator[Failure]:
    """The known failures of this combination of sections; none for models with batch norm.

    `is_normalised`: what a model of the user's own was found to be when it was made.
    """
    if model.is_normalised if is_normalised is None else is_normalised:
        return
    normalise = "batch norm" if model.own else "model.batch_norm: true"
    if rate.exponent == 1 and rate.base_batch and batch.global_size > LINEAR_LIMIT * rate.base_batch:
        yield Failure(
            f"linear scaling over {batch.global_size / rate.base_batch:g} times the batch fails on {model.name}, which has no "
            "batch norm",
            f"beyond {LINEAR_LIMIT} times use scaling 0.6 (GoogLeNet's published recipe), lars, or {normalise}",
        )
    settled = optimizer.settled
    if optimizer.name == "lars" and settled["excluded"] and settled["excluded_rate"] == "raw":
        yield Failure(
            f"excluded_rate: raw applies LARS's own learning rate to the biases of {model.name}; without batch norm the model "
            "then learns nothing",
            "use excluded_rate: base",
        )
