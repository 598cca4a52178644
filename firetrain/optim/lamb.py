"""The LAMB optimiser."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from firetrain.optim.norms import Norms, norms_of
from firetrain.optim.optimizer import Optimizer

__all__ = ["Lamb"]


class Lamb(Optimizer):
    """Adam's update u, scaled in each tensor by |w| / |u| (You et al. 2020, algorithm 2):

    m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;  u = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + epsilon) + d w;
    w <- w - rate |w| / |u| u, with a ratio of 1 where |w| or |u| is 0.

    Groups with `excluded=True` have no weight decay and no ratio, and their rate is multiplied by `excluded_scale`. All tensors
    of a group are updated together in a few fused passes; gradients are not changed.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> lamb = Lamb([{"params": [weight]}])
    >>> lamb.param_groups[0]["lr"] = 0.1
    >>> weight.grad = torch.tensor([0.0, 10.0])
    >>> lamb.step()  # the length of the step is 0.1 times the norm of the weight
    >>> weight.detach()
    tensor([3.0000, 3.5000])
    """

    def __init__(
        self,
        parameters: Iterable[dict[str, object]],
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.0,
        excluded_scale: float = 1.0,
    ) -> None:
        defaults = {
            "lr": 0.0, "beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": weight_decay,
            "excluded_scale": excluded_scale, "excluded": False, "step": 0,
        }  # fmt: skip
        super().__init__(parameters, defaults)

        self.norms: Norms = norms_of

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            if not weights:
                continue
            gradients = [p.grad for p in weights]
            for weight in (weight for weight in weights if not self.state[weight]):
                self.state[weight] = {"first": torch.zeros_like(weight), "second": torch.zeros_like(weight)}
            first, second = ([self.state[weight][name] for weight in weights] for name in ("first", "second"))
            group["step"] += 1
            beta1, beta2, step = group["beta1"], group["beta2"], group["step"]
            torch._foreach_lerp_(first, gradients, 1.0 - beta1)
            torch._foreach_mul_(second, beta2)
            torch._foreach_addcmul_(second, gradients, gradients, 1.0 - beta2)
            below = torch._foreach_sqrt(torch._foreach_div(second, 1.0 - beta2**step))
            torch._foreach_add_(below, group["epsilon"])
            updates = torch._foreach_div(torch._foreach_div(first, 1.0 - beta1**step), below)
            if group["excluded"]:
                torch._foreach_add_(weights, updates, alpha=-group["lr"] * group["excluded_scale"])
                continue
            if group["weight_decay"]:
                torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
            of_weights, of_updates = self.norms(weights, weights), self.norms(weights, updates)
            ratios = torch.where((of_weights > 0) & (of_updates > 0), of_weights / of_updates, 1.0)
            torch._foreach_mul_(updates, list(ratios.unbind()))
            torch._foreach_add_(weights, updates, alpha=-group["lr"])
