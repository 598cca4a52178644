"""Times slices of layers, which the search of placements needs, on all ranks at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from statistics import median
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from firetrain.bench.step import make_batch
from firetrain.config import Config
from firetrain.data.catalogue import open_dataset
from firetrain.models.dropout import Dropout
from firetrain.models.graph import Graph, Unit, trace
from firetrain.parallel.catalogue import replicate, worker_of
from firetrain.parallel.exchange import Exchanger
from firetrain.parallel.forward_backward import autocast
from firetrain.predict.work import PassSeconds
from firetrain.records.measured_slice import Ceilings, Stolen
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.context import make_context
from firetrain.reduction.interface import Bucket, Reduction
from firetrain.strategy.region import Region
from firetrain.strategy.slice import Slice
from firetrain.transport.device import synchronize
from firetrain.transport.timing import elapsed_s, of_every_rank, slowest_s
from firetrain.transport.transport import Transport

# more than the caches of a processor, so that weights come from memory, as in a step
_CACHES_BYTES = 96 << 20
_PRODUCT = 1024
# images, their channels, those of the output, pixels on each side, and those of the filters
_CONVOLUTION = (16, 64, 192, 8, 5)
# passes of a slice are timed in blocks of about this many seconds, clearing caches included; a clock may show nothing
_BLOCK_S, _SHORTEST_S = 0.25, 1e-4
# of a bucket that is summed beside compute
_LEAST_ELEMENTS, _MOST_ELEMENTS = 1 << 20, 64 << 20
# a product that takes less time than a layer, and the number of exchanges that are timed in a row
_SMALL_PRODUCT, _EXCHANGES = 192, 20


@dataclass(frozen=True)
class Slices:
    """Times slices of a traced model's layers in the config's precision. All methods are collective.

    - `model`, `graph`: in training mode, on this rank's device. `classes`: number of classes of the data.
    - `repeats`: timings of each slice; the median of the slowest rank counts.
    """

    config: Config
    model: nn.Module
    graph: Graph
    classes: int
    transport: Transport
    repeats: int = 5

    @classmethod
    def of(cls, config: Config, transport: Transport, repeats: int) -> Slices:
        """The slices of the config's model, which all ranks make."""
        classes = len(open_dataset(config.data).classes)
        model = replicate(config, classes, transport).train()
        return cls(config, model, trace(model, config.data.image_size), classes, transport, repeats)

    def seconds(self, wanted: Sequence[Slice]) -> list[PassSeconds]:
        """Seconds of the forward and backward passes of each slice, while all ranks compute the same."""
        own = torch.tensor([self._timed(slice_) for slice_ in wanted], dtype=torch.float64).reshape(-1, 2)
        everyone = torch.stack(self.transport.gather(own.to(self.transport.device))).amax(0).tolist()
        return [(forward_s, backward_s) for forward_s, backward_s in everyone]

    def ceilings(self) -> Ceilings:
        """What a rank can do at best: as many operations as in the faster one of a matrix product and a convolution.

        On AMD's processors a convolution that fits into the caches is faster by half (2026-11-25, torch 2.13.0).
        """
        device = self.transport.device
        one = torch.randn(_PRODUCT, _PRODUCT, device=device)
        count, inputs, outputs, size, kernel = _CONVOLUTION
        images = torch.randn(count, inputs, size, size, device=device)
        weights = torch.randn(outputs, inputs, kernel, kernel, device=device)
        work = count * outputs * inputs * (size * kernel) ** 2
        with autocast(device, self.config.precision), torch.no_grad():
            product_s = self._fastest_s(lambda: one @ one)
            convolution_s = self._fastest_s(lambda: conv2d(images, weights, padding=kernel // 2))
        memory = torch.zeros(_CACHES_BYTES // 4, device=device)
        copy = torch.empty_like(memory)
        copy_s = self._fastest_s(lambda: copy.copy_(memory))
        return Ceilings(
            operations_per_s=max(_PRODUCT**3 / product_s, work / convolution_s),
            bytes_per_s=2 * _CACHES_BYTES / copy_s,
        )

    def _fastest_s(self, run: Callable[[], object]) -> float:
        """The shortest call on any rank, in seconds, while all ranks do the same."""
        run()
        self.transport.barrier()
        own = min(elapsed_s(self.transport.device, run) for _ in range(4 * self.repeats))
        return min(of_every_rank(self.transport, own))

    def stolen(self, label: str) -> Stolen:
        """What communication takes from the compute of the model called `label`, on the slowest rank."""
        transport = self.transport
        if transport.size == 1:
            return Stolen(model=label, share=0.0)
        count = -(-self.config.batch.global_size // transport.size)
        batch = make_batch(np.arange(count), self.config.data.image_size, self.classes).moved(transport.device)
        worker = worker_of(self.config, self.model, transport)

        def passes() -> None:
            worker.backward(iter([batch]), [batch.samples], epoch=0)

        def around_passes() -> None:
            worker.backward(iter(()), [], epoch=0)
            worker.finish(count)

        with worker.unreduced():
            passes()
            alone_s = median(slowest_s(transport, passes) for _ in range(self.repeats))
            gradients_s = median(slowest_s(transport, around_passes) for _ in range(self.repeats))
            share = share_stolen(alone_s, *self._beside_a_sum_s(passes, alone_s))
        worker.close()
        # each layer has a forward and a backward pass
        wait_s = max(0.0, self._exchange_wait_s(alone_s / (2 * len(self.graph.layers))))
        return Stolen(model=label, share=share, exchange_wait_s=wait_s, gradients_s=gradients_s, ranks=transport.size)

    def _beside_a_sum_s(self, passes: Callable[[], None], alone_s: float) -> tuple[float, float]:
        """The median seconds of `passes`, which take `alone_s` otherwise, while a bucket is summed; those of the sum alone."""
        reduction, bucket, sum_s = self._lasting(alone_s)
        found = []
        for _ in range(self.repeats):
            self.transport.barrier()
            pending = reduction.start(bucket)
            own_s = elapsed_s(self.transport.device, passes)
            pending.wait()
            found.append(max(of_every_rank(self.transport, own_s)))
        reduction.close()
        return median(found), sum_s

    def _exchange_wait_s(self, compute_s: float) -> float:
        """The seconds by which a small exchange among all ranks takes longer after a computation of `compute_s`.

        The three are timed in turn, so that other load is in all of them; what is left of it may make the result negative.
        """
        transport = self.transport
        one = torch.randn(_SMALL_PRODUCT, _SMALL_PRODUCT, device=transport.device)
        products = max(1, round(compute_s / self._fastest_s(lambda: one @ one)))
        exchanger = Exchanger(transport)
        have = [Region(rank, rank + 1, 0, 1) for rank in range(transport.size)]
        need = [Region(0, transport.size, 0, 1)] * transport.size
        value = torch.zeros(1, 1, device=transport.device)

        def compute() -> None:
            for _ in range(products):
                one @ one

        def move() -> None:
            exchanger.move(value, have, need, 0, "an exchange that is timed")

        def both() -> None:
            compute()
            move()

        waits = []
        for _ in range(self.repeats):
            both_s, computed_s, moved_s = (slowest_s(transport, run, _EXCHANGES) for run in (both, compute, move))
            waits.append(both_s - computed_s - moved_s)
        exchanger.settle()
        exchanger.close()
        return median(waits)

    def _lasting(self, seconds: float) -> tuple[Reduction, Bucket, float]:
        """The config's reduction, a bucket whose sum takes about twice as many `seconds`, up to a limit, and its seconds."""
        size = _LEAST_ELEMENTS
        while True:
            reduction = find_reduction(
                str(self.config.reduction.spec), make_context(self.transport, self.config.reduction)
            )
            bucket = Bucket(torch.zeros(size, device=self.transport.device))
            reduction.prepare([bucket])
            sum_s = min(slowest_s(self.transport, partial(_sum_once, reduction, bucket)) for _ in range(2))
            if sum_s >= 2 * seconds or size >= _MOST_ELEMENTS:
                return reduction, bucket, sum_s
            reduction.close()
            size = min(_MOST_ELEMENTS, int(size * max(2.0, min(64.0, 2.1 * seconds / sum_s))))

    def _timed(self, slice_: Slice) -> PassSeconds:
        """Seconds on this rank: the median over blocks of the mean of a block's passes; caches are cleared before each pass.

        A node with a share of a processor is stopped for some milliseconds again and again: a single short pass has such a stop
        or has none, and the slowest of several ranks mostly has one.
        """
        run, device = (
            _passes(self.graph, self.graph.units[slice_.layer], slice_, self.config, self.transport),
            self.transport.device,
        )
        caches = torch.zeros(_CACHES_BYTES // 4, device=device)
        self.transport.barrier()

        def passes() -> PassSeconds:
            caches.add_(1.0)
            synchronize(device)
            began_s = time.perf_counter()
            output = run()
            synchronize(device)
            computed_s = time.perf_counter()
            output.backward(torch.ones_like(output))
            synchronize(device)
            return computed_s - began_s, time.perf_counter() - computed_s

        passes()
        began_s = time.perf_counter()
        passes()
        in_a_block = ceil(_BLOCK_S / max(_SHORTEST_S, time.perf_counter() - began_s))
        blocks = [np.mean([passes() for _ in range(in_a_block)], axis=0) for _ in range(self.repeats)]
        forward_s, backward_s = np.median(blocks, axis=0).tolist()
        return forward_s, backward_s


def share_stolen(alone_s: float, beside_s: float, sum_s: float) -> float:
    """The share of its own time that a sum takes from compute, which takes `beside_s` in place of `alone_s` then.

    A sum of `sum_s` that is not twice as long as the compute alone, because no bucket is so large, may end before it.

    >>> share_stolen(1.0, 2.0, sum_s=2.0), share_stolen(10.0, 10.25, sum_s=0.5)
    (0.5, 0.5)
    """
    lasts_s = beside_s if sum_s >= 2 * alone_s else min(beside_s, sum_s)
    return min(1.0, max(0.0, (beside_s - alone_s) / lasts_s))


def _sum_once(reduction: Reduction, bucket: Bucket) -> None:
    reduction.start(bucket).wait()


def _passes(graph: Graph, unit: Unit, slice_: Slice, config: Config, transport: Transport) -> Callable[[], Tensor]:
    """The forward pass of a slice on random numbers; the result has a gradient."""
    positions = graph.units[unit.layer.sources[0]].final if unit.layer.sources else (config.data.image_size,) * 2
    x = torch.randn(slice_.images, slice_.inputs, *positions, device=transport.device)
    if x.dim() == 4 and config.channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    x.requires_grad_(bool(unit.layer.sources) or not unit.layer.parameters)
    first = _sliced_module(unit, slice_)
    keys = torch.zeros(slice_.images, dtype=torch.int32, device=transport.device)

    def run() -> Tensor:
        x.grad = None
        with autocast(transport.device, config.precision):
            y = first(x.clone() if unit.writes_input else x)
            for operation in unit.operations:
                if isinstance(operation, Dropout):
                    operation.keys = keys
                y = operation(y)
        return y

    return run


def _sliced_module(unit: Unit, slice_: Slice) -> Callable[[Tensor], Tensor]:
    """The module of a slice, with its slice of the weights."""
    if unit.layer.kind != "weights":
        return unit.module or (lambda x: x)
    module = cast("nn.Conv2d | nn.Linear", unit.module)
    weight = module.weight.detach()[: slice_.outputs, : slice_.inputs].clone().requires_grad_()
    bias = None if module.bias is None else module.bias.detach()[: slice_.outputs].clone().requires_grad_()
    if isinstance(module, nn.Conv2d):
        return lambda x: nn.functional.conv2d(x, weight, bias, module.stride, module.padding, module.dilation)
    return lambda x: nn.functional.linear(x, weight, bias)
