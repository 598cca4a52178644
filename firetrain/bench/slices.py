"""Times shares of layers, which the search of placements needs, on all ranks at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import cast

import torch
from torch import Tensor, nn

from firetrain.config import Config
from firetrain.data.catalogue import open_dataset
from firetrain.models.dropout import Dropout
from firetrain.models.graph import Graph, Unit, trace
from firetrain.parallel.catalogue import replicate
from firetrain.parallel.forward_backward import autocast
from firetrain.records.measured_slice import Ceilings
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.context import make_context
from firetrain.reduction.interface import Bucket
from firetrain.strategy.slice import Slice
from firetrain.transport.device import synchronize
from firetrain.transport.timing import elapsed_s
from firetrain.transport.transport import Transport

# more than the caches of a processor, so that weights come from memory, as in a step
_CACHES_BYTES = 96 << 20
_PRODUCT = 1024
# seconds for which compute is timed beside sums
_BESIDE_S = 1.0
Seconds = tuple[float, float]


@dataclass(frozen=True)
class Slices:
    """Times slices of a traced model's layers in the config's precision. All methods are collective.

    - `graph`: of the model in training mode, on this rank's device.
    - `repeats`: timings of each slice; the median of the slowest rank counts.
    """

    config: Config
    graph: Graph
    transport: Transport
    repeats: int = 5

    @classmethod
    def of(cls, config: Config, transport: Transport, repeats: int) -> Slices:
        """The slices of the config's model, which all ranks make."""
        model = replicate(config, len(open_dataset(config.data).classes), transport)
        return cls(config, trace(model.train(), config.data.image_size), transport, repeats)

    def seconds(self, wanted: Sequence[Slice]) -> list[Seconds]:
        """Seconds of the forward and backward passes of each slice, while all ranks compute the same."""
        own = torch.tensor([self._timed(part) for part in wanted], dtype=torch.float64).reshape(-1, 2)
        everyone = torch.stack(self.transport.gather(own.to(self.transport.device))).amax(0).tolist()
        return [(forward_s, backward_s) for forward_s, backward_s in everyone]

    def ceilings(self) -> Ceilings:
        """What a rank can do at best, and what a sum takes from compute."""
        device = self.transport.device
        one = torch.randn(_PRODUCT, _PRODUCT, device=device)
        with autocast(device, self.config.precision):
            product_s = self._fastest_s(lambda: one @ one)
        memory = torch.zeros(_CACHES_BYTES // 4, device=device)
        copy = torch.empty_like(memory)
        copy_s = self._fastest_s(lambda: copy.copy_(memory))
        return Ceilings(
            operations_per_s=_PRODUCT**3 / product_s,
            bytes_per_s=2 * _CACHES_BYTES / copy_s,
            stolen=self._stolen(lambda: one @ one),
        )

    def _fastest_s(self, run: Callable[[], object]) -> float:
        """The shortest call on any rank, in seconds, while all ranks do the same."""
        run()
        self.transport.barrier()
        own = min(elapsed_s(self.transport.device, run) for _ in range(4 * self.repeats))
        return min(float(one) for one in self.transport.gather(torch.tensor([own], device=self.transport.device)))

    def _stolen(self, compute: Callable[[], object]) -> float:
        """The share of compute that is lost on the slowest rank while the config's reduction sums a large bucket."""
        if self.transport.size == 1:
            return 0.0
        context = make_context(self.transport, self.config.reduction)
        reduction = find_reduction(str(self.config.reduction.spec), context)
        bucket = Bucket(torch.zeros(_CACHES_BYTES // 16, device=self.transport.device))
        reduction.prepare([bucket])
        reduction.start(bucket).wait()
        self.transport.barrier()
        alone_s = median(elapsed_s(self.transport.device, compute) for _ in range(8 * self.repeats))
        self.transport.barrier()
        beside, began_s = list[float](), time.perf_counter()
        while time.perf_counter() - began_s < _BESIDE_S:
            pending = reduction.start(bucket)
            beside += [elapsed_s(self.transport.device, compute) for _ in range(self.repeats)]
            pending.wait()
        reduction.close()
        lost = 1 - alone_s / (sum(beside) / len(beside))
        return max(
            0.0, *(float(one) for one in self.transport.gather(torch.tensor([lost], device=self.transport.device)))
        )

    def _timed(self, part: Slice) -> Seconds:
        """The median seconds of this rank; caches are cleared before each pass."""
        run, device = (
            _passes(self.graph, self.graph.units[part.layer], part, self.config, self.transport),
            self.transport.device,
        )
        caches = torch.zeros(_CACHES_BYTES // 4, device=device)
        self.transport.barrier()
        times = []
        for _ in range(self.repeats + 1):  # the first one warms up
            caches.add_(1.0)
            synchronize(device)
            began_s = time.perf_counter()
            output = run()
            synchronize(device)
            computed_s = time.perf_counter()
            output.backward(torch.ones_like(output))
            synchronize(device)
            times.append((computed_s - began_s, time.perf_counter() - computed_s))
        forward_s, backward_s = zip(*times[1:], strict=True)
        return median(forward_s), median(backward_s)


def _passes(graph: Graph, unit: Unit, part: Slice, config: Config, transport: Transport) -> Callable[[], Tensor]:
    """The forward pass of a slice on random numbers; the result has a gradient."""
    positions = graph.units[unit.layer.sources[0]].final if unit.layer.sources else (config.data.image_size,) * 2
    x = torch.randn(part.images, part.inputs, *positions, device=transport.device)
    if x.dim() == 4 and config.channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    x.requires_grad_(bool(unit.layer.sources) or not unit.layer.parameters)
    first = _first(unit, part)
    keys = torch.zeros(part.images, dtype=torch.int32, device=transport.device)

    def run() -> Tensor:
        x.grad = None
        with autocast(transport.device, config.precision):
            y = first(x)
            for operation in unit.operations:
                if isinstance(operation, Dropout):
                    operation.keys = keys
                y = operation(y)
        return y

    return run


def _first(unit: Unit, part: Slice) -> Callable[[Tensor], Tensor]:
    """The module of a slice, with its share of the weights."""
    if unit.layer.kind != "weights":
        return unit.module or (lambda x: x)
    module = cast("nn.Conv2d | nn.Linear", unit.module)
    weight = module.weight.detach()[: part.outputs, : part.inputs].clone().requires_grad_()
    bias = None if module.bias is None else module.bias.detach()[: part.outputs].clone().requires_grad_()
    if isinstance(module, nn.Conv2d):
        return lambda x: nn.functional.conv2d(x, weight, bias, module.stride, module.padding, module.dilation)
    return lambda x: nn.functional.linear(x, weight, bias)
