"""The LARS optimiser; with the trust ratio off, it is SGD."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from firetrain.optim.norms import Norms, norms_of
from firetrain.optim.optimizer import Optimizer
from firetrain.transport.device import is_gpu

__all__ = ["Lars"]


class Lars(Optimizer):
    """v <- m v + r (g + d w);  w <- w - rate v, with r = eta |w| / (|g| + d |w|) per tensor (You et al. 2017, equation 6).

    If `trust_coefficient` (eta) is None, r = 1, which is SGD. Nesterov: w <- w - rate (r (g + d w) + m v). Groups with
    `excluded=True` have no weight decay d, and r = 1; under LARS their rate is multiplied by `excluded_scale`. Gradients are not
    changed; norms are in float32, by `norms`. Implementations differ in the other options: firetrain/config/sections/presets.py
    explains each option, and lists its value in each implementation.

    SGD is torch's fused SGD, one pass over memory. With a trust ratio r, each tensor is updated on the CPU by fused SGD with
    dampening 1 - r; on a GPU all tensors are updated together in a few passes, without waiting for the host.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> lars = Lars([{"params": [weight]}], momentum=0.0, weight_decay=0.0, trust_coefficient=0.1)
    >>> lars.param_groups[0]["lr"] = 1.0
    >>> weight.grad = torch.tensor([0.0, 10.0])
    >>> lars.step()  # the length of the step is 0.1 times the norm of the weight
    >>> weight.detach()
    tensor([3.0000, 3.5000])
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
        rate_in_momentum: bool = False,
        decay_in_norm: bool = True,
        zero_norm: str = "coefficient",
        epsilon: float = 0.0,
        trust_clip: bool = False,
    ) -> None:
        defaults = {
            "lr": 0.0, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov,
            "trust_coefficient": trust_coefficient, "excluded_scale": excluded_scale, "excluded": False,
            "rate_in_momentum": rate_in_momentum, "decay_in_norm": decay_in_norm, "zero_norm": zero_norm, "epsilon": epsilon,
            "trust_clip": trust_clip,
        }  # fmt: skip
        super().__init__(parameters, defaults)

        self.norms: Norms = norms_of

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            if weights:
                self._update(group, weights, [p.grad for p in weights])

    def _update(self, group: dict[str, float], weights: list[Tensor], gradients: list[Tensor]) -> None:
        adapts = group["trust_coefficient"] is not None and not group["excluded"]
        scaled = group["trust_coefficient"] is not None and group["excluded"]
        rate = group["lr"] * (group["excluded_scale"] if scaled else 1.0)
        decay = 0.0 if group["excluded"] else group["weight_decay"]
        # SGD uses torch's form (rate outside the momentum); the two forms agree only for a constant rate
        inside = bool(group["rate_in_momentum"]) and group["trust_coefficient"] is not None
        ratios = trust_ratios(weights, gradients, decay, rate, group, self.norms) if adapts else None
        if inside:
            ratios = torch.full((len(weights),), rate, device=weights[0].device) if ratios is None else ratios * rate
            rate = 1.0
        buffers = self._buffers(weights)
        on_cpu = not is_gpu(weights[0].device)
        if ratios is None:
            held = buffers if group["momentum"] else []
            fused(weights, gradients, held, rate, decay, group["momentum"], nesterov=bool(group["nesterov"]))
        elif on_cpu and ratios is not None and group["momentum"] and not group["nesterov"] and _is_large(ratios):
            for w, g, v, ratio in zip(weights, gradients, buffers, ratios.double().tolist(), strict=True):
                fused([w], [g], [v], rate, decay, group["momentum"], dampening=1.0 - ratio)
        else:
            self.in_several_passes(group, weights, gradients, buffers, rate, decay, ratios)

    @staticmethod
    def in_several_passes(
        group: dict[str, float],
        weights: list[Tensor],
        gradients: list[Tensor],
        buffers: list[Tensor],
        rate: float,
        decay: float,
        ratios: Tensor | None,
    ) -> None:
        """Update all weights together, with one pass over memory for each operation."""
        updates = torch._foreach_add(gradients, weights, alpha=decay) if decay else list(gradients)
        if ratios is not None:
            updates = list(torch._foreach_mul(updates, list(ratios.unbind())))
        if group["momentum"]:
            torch._foreach_mul_(buffers, group["momentum"])
            torch._foreach_add_(buffers, updates)
            updates = torch._foreach_add(updates, buffers, alpha=group["momentum"]) if group["nesterov"] else buffers
        torch._foreach_add_(weights, updates, alpha=-rate)

    def _buffers(self, weights: Sequence[Tensor]) -> list[Tensor]:
        for weight in weights:
            if "momentum" not in self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        return [self.state[weight]["momentum"] for weight in weights]


def _is_large(ratios: Tensor) -> bool:
    """Whether every ratio r survives the fused kernel's 1 - (1 - r) at float32 precision."""
    return bool((ratios > 1e-8).all())


def fused(
    weights: list[Tensor],
    gradients: list[Tensor],
    buffers: list[Tensor],
    rate: float,
    decay: float,
    momentum: float,
    *,
    dampening: float = 0.0,
    nesterov: bool = False,
) -> None:
    """v <- m v + (1 - dampening) (g + d w);  w <- w - rate v, in one pass of torch's kernel; buffers must start at zero."""
    torch._fused_sgd_(
        weights, gradients, buffers, weight_decay=decay, momentum=momentum, lr=rate, dampening=dampening, nesterov=nesterov,
        maximize=False, is_first_step=False,
    )  # fmt: skip


def trust_ratios(
    weights: list[Tensor],
    gradients: list[Tensor],
    decay: float,
    rate: float,
    options: dict[str, Any],
    norms: Norms = norms_of,
) -> Tensor:
    """The ratio r of each tensor for the `options` of Lars, as a vector on the tensors' device, without synchronisation."""
    of_weights, of_gradients = norms(weights, weights), norms(weights, gradients)
    below = of_gradients + options["epsilon"]
    if options["decay_in_norm"]:
        below = below + decay * of_weights
    usable = (of_weights > 0) & (of_gradients > 0)
    coefficient = options["trust_coefficient"]
    ratios = torch.where(
        usable, coefficient * of_weights / below, coefficient if options["zero_norm"] == "coefficient" else 1.0
    )
    return (ratios / rate).clamp(max=1.0) if options["trust_clip"] else ratios
