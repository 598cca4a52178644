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
    kept = [step for step in before.steps if step.model != label]
    others = [one for one in before.residuals if one.model != label]
    profile = before.with_links(links, machine).model_copy(
        update={"steps": (*kept, *steps), "s_per_added_byte": added, "residuals": tuple(others)}
    )
    if ranks == 1:
        return profile
    profile = profile.model_copy(update={"ranks_per_node": per_node})
    question = Question.of(config, [ranks], [str(config.reduction.spec)], per_node)
    foretold = Model(profile, question).rows()[-1].step_s
    left = [max(0.0, seconds - foretold) for seconds in (whole.value, whole.low or 0.0, whole.high or 0.0)]
    seconds = Quantity(value=left[0], low=left[1], high=left[2], count=whole.count)
    residual = Residual(model=label, ranks=ranks, reduction=str(config.reduction.spec), seconds=seconds)
    return profile.model_copy(update={"residuals": (*others, residual)})
