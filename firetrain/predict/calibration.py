"""A profile brought up to date with new measurements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from firetrain.config import Config
from firetrain.predict.label import model_label
from firetrain.predict.model import Model, Question
from firetrain.records.profile import MeasuredLink, MeasuredStep, Profile, Quantity, Residual


def calibrated(
    before: Profile,
    config: Config,
    steps: Sequence[MeasuredStep],
    links: Sequence[MeasuredLink],
    added: Quantity,
    whole: Quantity,
    ranks: int,
    per_node: int,
    machine: dict[str, Any],
) -> Profile:
    """With these in place of what was known of the same model; what the model leaves of `whole`, a step's seconds, is kept too.

    The residual is not below zero: a step that was faster than foretold says that something was counted twice.
    """
    label = model_label(config)
    fresh = {step.batch_per_rank for step in steps}
    kept = [step for step in before.steps if step.model != label or step.batch_per_rank not in fresh]
    profile = before.with_links(links, machine) if links else before
    profile = profile.model_copy(
        update={"steps": (*kept, *steps), "s_per_added_byte": added, "residuals": (), "ranks_per_node": per_node}
    )
    if ranks == 1 or not profile.links:
        return profile
    question = Question(
        label, [ranks], [config.reduction.name], per_node, config.batch.global_size,
        bucket_bytes=int((config.reduction.bucket_mib or 4) * 2**20),
    )  # fmt: skip
    foretold = Model(profile, question).rows()[-1].step_s
    left = [max(0.0, seconds - foretold) for seconds in (whole.value, whole.low or 0.0, whole.high or 0.0)]
    seconds = Quantity(value=left[0], low=left[1], high=left[2], count=whole.count)
    others = [one for one in before.residuals if one.model != label]
    residual = Residual(model=label, ranks=ranks, reduction=config.reduction.name, seconds=seconds)
    return profile.model_copy(update={"residuals": (*others, residual)})
