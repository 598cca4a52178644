"""Makes the optimiser of a config."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from firetrain.config import Config
from firetrain.optim.kept_weights import Values, keep_weights
from firetrain.optim.kinds import kinds_of
from firetrain.optim.lamb import Lamb
from firetrain.optim.lars import Lars
from firetrain.optim.norms import Norms


class Shards(NamedTuple):
    """What the optimiser of a rank that holds shards of tensors needs of the other ranks.

    - `norms`: of whole tensors. `end_norms`: makes the calls of `norms` that only other ranks have made in a step.
    - `values`: that the weights of whole tensors share.
    """

    norms: Norms
    end_norms: Callable[[], None]
    values: Values


def make_optimizer(model: nn.Module, config: Config, shards: Shards | None = None) -> torch.optim.Optimizer:
    """The optimiser of a config. The kinds of parameters that it excludes form a group.

    The learning rates of LARS and LAMB are meant to be multiplied by a trust ratio. Parameters without one therefore keep the
    small batch's rate by default. With `model.keep`, the zeros or shared values that the weights have before the first step
    are kept. `shards` are needed if the model has shards of tensors.
    """
    optimizer = _optimizer(model, config)
    if shards:
        optimizer.norms = shards.norms  # type: ignore[attr-defined]
        # hooks run in this order, so that all ranks have made equally many calls before they sum shared values
        optimizer.register_step_post_hook(lambda *_: shards.end_norms())
    if config.model.keep:
        keep_weights(optimizer, config.model.keep, shards.values if shards else None)
    return optimizer


def _optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    section, rate = config.optimizer, config.learning_rate
    settled = section.settled
    kinds, apart = kinds_of(model), settled["excluded"]
    excluded = [p for p in model.parameters() if kinds[id(p)] in apart]
    adapted = [p for p in model.parameters() if kinds[id(p)] not in apart]
    groups: list[dict[str, object]] = [{"params": adapted}, {"params": excluded, "excluded": True}]
    groups = [group for group in groups if group["params"]]
    scale = 1.0 if settled["excluded_rate"] == "raw" else rate.base / rate.peak_for(config.batch.global_size)
    if section.name == "lamb":
        return Lamb(
            groups,
            beta1=section.momentum,
            beta2=0.999 if section.beta2 is None else section.beta2,
            epsilon=1e-6 if section.epsilon is None else section.epsilon,
            weight_decay=section.weight_decay,
            excluded_scale=scale,
        )
    common = {"momentum": section.momentum, "weight_decay": section.weight_decay, "nesterov": section.nesterov}
    if section.name == "sgd":
        return Lars(groups, **common)  # type: ignore[arg-type]
    coefficient = settled["trust_coefficient"]
    if section.preset == "nvcaffe" and section.trust_coefficient is None:
        coefficient *= 1.0 - section.momentum
    options = {key: settled[key] for key in ("rate_in_momentum", "decay_in_norm", "zero_norm", "epsilon", "trust_clip")}
    return Lars(groups, **common, trust_coefficient=coefficient, excluded_scale=scale, **options)  # type: ignore[arg-type]


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of the next step, in all groups."""
    for group in optimizer.param_groups:
        group["lr"] = rate
