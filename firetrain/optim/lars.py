"""LARS, and SGD, which is LARS with the trust ratio off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from firetrain.config import Config

TRUST_COEFFICIENT = 0.001


class Lars(torch.optim.Optimizer):
    """v <- m v + r (g + d w);  w <- w - rate v, with r = eta |w| / (|g| + d |w|) per tensor (You et al. 2017, equation 6).

    SGD where `trust_coefficient` (eta) is None: r = 1. Nesterov: w <- w - rate (r (g + d w) + m v). Groups with
    `excluded=True` have no decay d and r = 1; under LARS their rate is multiplied by `excluded_scale`. The rate stands
    outside the momentum buffer, as in torch's SGD. r = eta where |w| or |g| is 0. Gradients are not changed. One fused
    pass over all tensors of a group; norms in float32.
    """

    def __init__(
        self,
        parameters: Iterable[dict[str, object]],
        *,
        momentum: float,
        weight_decay: float,
        nesterov: bool = False,
        trust_coefficient: float | None = None,
        excluded_scale: float = 1.0,
    ) -> None:
        defaults = {
            "lr": 0.0,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "trust_coefficient": trust_coefficient,
            "excluded_scale": excluded_scale,
            "excluded": False,
        }
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            if weights:
                self._update(group, weights, [p.grad for p in weights])

    def _update(self, group: dict[str, float], weights: list[Tensor], gradients: list[Tensor]) -> None:
        adapts = group["trust_coefficient"] is not None
        rate = group["lr"] * (group["excluded_scale"] if adapts and group["excluded"] else 1.0)
        decay = 0.0 if group["excluded"] else group["weight_decay"]
        updates = torch._foreach_add(gradients, weights, alpha=decay) if decay else list(gradients)
        if adapts and not group["excluded"]:
            ratios = _trust_ratios(weights, gradients, decay, group["trust_coefficient"])
            updates = list(torch._foreach_mul(updates, ratios))
        if group["momentum"]:
            buffers = self._buffers(weights)
            torch._foreach_mul_(buffers, group["momentum"])
            torch._foreach_add_(buffers, updates)
            updates = torch._foreach_add(updates, buffers, alpha=group["momentum"]) if group["nesterov"] else buffers
        torch._foreach_add_(weights, updates, alpha=-rate)

    def _buffers(self, weights: Sequence[Tensor]) -> list[Tensor]:
        for weight in weights:
            if "momentum" not in self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        return [self.state[weight]["momentum"] for weight in weights]


def _trust_ratios(weights: list[Tensor], gradients: list[Tensor], decay: float, coefficient: float) -> list[Tensor]:
    """eta |w| / (|g| + d |w|), eta where a norm is zero; scalars on the tensors' device, no synchronisation."""
    of_weights, of_gradients = torch.stack(torch._foreach_norm(weights)), torch.stack(torch._foreach_norm(gradients))
    ratios = coefficient * of_weights / (of_gradients + decay * of_weights)
    usable = (of_weights > 0) & (of_gradients > 0)
    return list(torch.where(usable, ratios, coefficient).unbind())


def make_optimizer(model: nn.Module, config: Config) -> Lars:
    """The optimiser of a config; biases and normalisation parameters are set apart as the config says."""
    section = config.optimizer
    names = _kinds(model)
    excluded = [p for p in model.parameters() if names[id(p)] in section.excluded]
    adapted = [p for p in model.parameters() if names[id(p)] not in section.excluded]
    groups: list[dict[str, object]] = [{"params": adapted}, {"params": excluded, "excluded": True}]
    lars = section.name == "lars"
    raw = section.excluded_rate == "raw"
    return Lars(
        [group for group in groups if group["params"]],
        momentum=section.momentum,
        weight_decay=section.weight_decay,
        nesterov=section.nesterov,
        trust_coefficient=(section.trust_coefficient or TRUST_COEFFICIENT) if lars else None,
        # LARS's rates are 10 and more: what its trust ratio does not tame keeps the rate of the small batch
        excluded_scale=1.0 if raw else config.learning_rate.base / config.peak_rate,
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate of the coming step, in all groups."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def _kinds(model: nn.Module) -> dict[int, str]:
    """For each parameter's id: bias, norm or weight."""
    norms = (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)
    kinds: dict[int, str] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            kinds[id(parameter)] = "norm" if isinstance(module, norms) else "bias" if name == "bias" else "weight"
    return kinds
