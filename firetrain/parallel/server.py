"""A parameter server: weights, their optimiser, and a policy for gradients that come at any time; without clock and network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from firetrain.optim.catalogue import set_rate
from firetrain.strategy.policy import Policy


class Server:
    """Owns the weights of a model, and updates them with the gradients that workers push.

    The gradient of an update is the mean over the images of all gradients that the policy has kept since the last one. With
    `staleness_aware`, a gradient of staleness tau > 1 counts 1 / tau (Zhang et al. 2016, equation 6).

    - `weights`: all parameters in one vector, float32 [parameters]; the model's parameters are views of it.
    - `updates`: number of updates so far. `staleness`: how many gradients were kept, by staleness. `dropped`: the others.
    - `rate`: the learning rate of an update, by the number of gradients that were kept until then.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        policy: Policy,
        rate: Callable[[int], float],
        *,
        staleness_aware: bool = False,
    ) -> None:
        self.policy, self._optimizer, self._rate, self._aware = policy, optimizer, rate, staleness_aware
        self.weights = flat(model)
        self._gradient = torch.zeros_like(self.weights)
        for parameter, part in _parts(model, self._gradient):
            parameter.grad = part
        self._images = 0.0
        self.updates, self.dropped = 0, 0
        self.staleness: Counter[int] = Counter()

    def push(self, worker: int, stamp: int, gradient: Tensor, images: int) -> tuple[int, ...]:
        """Take the gradient of the summed loss over `images` images, at weights of `stamp` updates; returns who is released."""
        decision = self.policy.push(worker, stamp)
        if decision.keeps:
            staleness = self.updates - stamp
            self.staleness[staleness] += 1
            self._gradient.add_(gradient, alpha=1 / staleness if self._aware and staleness > 1 else 1.0)
            self._images += images
        else:
            self.dropped += 1
        if decision.applies:
            self._update()
        return decision.released

    def _update(self) -> None:
        self._gradient.mul_(1.0 / max(1.0, self._images))  # as data-parallel training divides its sums
        set_rate(self._optimizer, self._rate(self.staleness.total()))
        self._optimizer.step()
        self._gradient.zero_()
        self._images = 0.0
        self.updates += 1


class Averager:
    """Owns the weights of a model, and replaces them by the mean of those that the workers push, weighted by their images.

    The attributes are those of `Server`; the weights that a worker pushes are never stale.
    """

    def __init__(self, model: nn.Module, policy: Policy) -> None:
        self.policy = policy
        self.weights = flat(model)
        # in float64 the mean of a single worker has the bits of its weights
        self._sum, self._images = torch.zeros_like(self.weights, dtype=torch.float64), 0
        self.updates, self.dropped = 0, 0
        self.staleness: Counter[int] = Counter()

    def push(self, worker: int, stamp: int, weights: Tensor, images: int) -> tuple[int, ...]:
        """Take the weights of a worker after it has trained on `images` images; returns who is released."""
        decision = self.policy.push(worker, stamp)
        self.staleness[self.updates - stamp] += 1
        self._sum.add_(weights, alpha=images)
        self._images += images
        if decision.applies:
            if self._images:
                self.weights.copy_(self._sum.div_(self._images))
            self._sum.zero_()
            self._images = 0
            self.updates += 1
        return decision.released


def flat(model: nn.Module) -> Tensor:
    """All parameters of a model in one vector, in the order in which they are in memory; they become views of it."""
    found = flat_copy(model)
    for parameter, part in _parts(model, found):
        parameter.data = part
    return found


def flat_copy(model: nn.Module) -> Tensor:
    """A copy of all parameters of a model, in the order of `flat`."""
    return torch.cat([_in_memory(parameter.detach(), parameter) for parameter in model.parameters()])


def load_flat(model: nn.Module, weights: Tensor) -> None:
    """Copy all parameters from a vector in the order of `flat`; they stay where they are in memory."""
    with torch.no_grad():
        for parameter, part in _parts(model, weights):
            parameter.copy_(part)


def flat_gradient(model: nn.Module) -> Tensor:
    """All gradients of a model in a new vector, in the order of `flat`."""
    return torch.cat([_in_memory(one.grad, one) for one in model.parameters() if one.grad is not None])


def _in_memory(values: Tensor, like: Tensor) -> Tensor:
    """The values in one dimension, as a tensor with the strides of `like` has them in memory (channels_last, for instance)."""
    return torch.empty_like(like).copy_(values).as_strided((like.numel(),), (1,))


def _parts(model: nn.Module, whole: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Each parameter, with its part of a vector in its own shape and strides."""
    offset = 0
    for parameter in model.parameters():
        yield parameter, whole.as_strided(parameter.shape, parameter.stride(), offset)
        offset += parameter.numel()
