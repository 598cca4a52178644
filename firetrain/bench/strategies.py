"""The time of a training step under several strategies, on the same model, batch, ranks and links."""

from __future__ import annotations

import copy
import gc
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from firetrain.bench.references import RATE, Reference, flat, make_reference
from firetrain.bench.sent_bytes import expected_bytes, sent_bytes
from firetrain.bench.spread import ratios, spread
from firetrain.bench.step import make_batch, one_step
from firetrain.cluster import SystemClock
from firetrain.config import Config
from firetrain.config.load import with_strategy
from firetrain.config.sections.reduction import ReductionSection
from firetrain.config.spec import Spec
from firetrain.data.catalogue import open_dataset
from firetrain.errors import FiretrainError, UserError
from firetrain.models.dropout import dropouts_of
from firetrain.parallel.catalogue import placement_for, replicate, worker_of
from firetrain.parallel.worker import Worker
from firetrain.records.parts import BUBBLE, COMPUTE, EXPOSED, OF_A_PLACEMENT, Part
from firetrain.strategy.placement import Placement
from firetrain.training.stopwatch import Stopwatch
from firetrain.transport.timing import elapsed_s, of_every_rank
from firetrain.transport.transport import Transport

# allowed difference of the weights' changes in a step, relative to the largest: ReLU and max pooling may decide differently
# where float32 sums differ; tests compare in float64
TOLERANCE = 1e-2
# the first one is compute
PARTS = (COMPUTE, *OF_A_PLACEMENT, EXPOSED)


@dataclass
class StrategyContender:
    """A strategy, or a reference, to time.

    - `step`: runs a training step. `weights`: the whole model's weights on rank 0, in one vector.
    - `placement`: None for a reference. `parts_s`: seconds of each part of a step on this rank.
    """

    name: str
    step: Callable[[], None]
    weights: Callable[[], Tensor]
    close: Callable[[], None]
    placement: Placement | None = None
    parts_s: Callable[[], dict[Part, float]] = dict
    step_s: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    parts: dict[Part, list[float]] = field(default_factory=lambda: defaultdict(list))


def bench_strategies(
    config: Config,
    transport: Transport,
    names: Sequence[str],
    steps: int,
    repeats: int,
    references: Sequence[Spec] = (),
) -> dict[str, Any]:
    """Time `steps` steps of each strategy `repeats` times, alternating, in changing order; then each of `references`.

    The batch is fixed and in memory, dropout is off. All must change the weights alike in their first step: FiretrainError if
    they do not. Seconds per step are those of the slowest rank; parts are means over ranks; bytes are those that this machine's
    interfaces sent (None if ranks share a machine) beside those that the placement and the plan of the reduction predict.
    Returns JSON-ready facts on every rank.
    """
    if transport.size == 1:
        raise UserError("bench strategies needs 2 ranks or more (--ranks)")
    classes = len(open_dataset(config.data).classes)
    model = replicate(config, classes, transport)
    for layer in dropouts_of(model):
        layer.p = 0.0  # the references would draw different masks
    before = flat(model)
    contenders = [_ours(config, copy.deepcopy(model), classes, transport, name) for name in names]
    contenders += [
        _reference(make_reference(spec, config, copy.deepcopy(model), classes, transport)) for spec in references
    ]
    differences = _differences(contenders, before, transport)
    _time_all(contenders, steps, repeats, transport)
    images, reduction = config.batch.global_size, config.reduction
    result = {
        "model": config.model.name, "global_batch": images, "image_size": config.data.image_size,
        "parameters": len(before), "world": str(transport.world), "ranks": transport.size, "nodes": len(transport.world.nodes),
        "transport": transport.name, "reduction": str(reduction.spec), "steps": steps, "differences": differences,
        "strategies": {
            one.name: _facts(one, contenders[0], images, len(before), reduction, transport) for one in contenders
        },
    }  # fmt: skip
    _close(contenders)
    transport.close()
    return result


def _time_all(contenders: Sequence[StrategyContender], steps: int, repeats: int, transport: Transport) -> None:
    for repeat in range(-1, repeats):  # the first repeat warms up
        for one in contenders if repeat % 2 else contenders[::-1]:
            _time(one, steps, transport, keep=repeat >= 0)


def _close(contenders: list[StrategyContender]) -> None:
    """Release the contenders and what they hold.

    DistributedDataParallel must be gone before its process group. Otherwise it destroys the group while it holds the GIL, and
    waits for a thread that sometimes waits for the GIL.
    """
    while contenders:
        contenders.pop().close()
    gc.collect()


def _ours(config: Config, model: nn.Module, classes: int, transport: Transport, strategy: str) -> StrategyContender:
    config = with_strategy(config, strategy)
    _, placement = placement_for(config.strategy.spec, model, config.data.image_size, transport.world)
    worker = worker_of(config, model, transport)
    pieces = worker.micro_batches(np.arange(config.batch.global_size))
    batches = [
        make_batch(worker.reads(piece), config.data.image_size, classes).moved(transport.device) for piece in pieces
    ]
    stopwatch = Stopwatch(transport.device, SystemClock())

    def step() -> None:
        stopwatch.start()
        one_step(worker, batches, pieces, config.batch.global_size, RATE, stopwatch.lap)

    return StrategyContender(strategy, step, lambda: weights_of(worker), worker.close, placement, stopwatch.totals)


def _reference(reference: Reference) -> StrategyContender:
    return StrategyContender(reference.name, reference.step, reference.weights, lambda: None)


def weights_of(worker: Worker) -> Tensor:
    """The whole model's weights on rank 0, [parameters], and nothing on other ranks. Collective."""
    statistics = dict(worker.model.named_buffers())
    weights = [value for name, value in worker.state().get("model", {}).items() if name not in statistics]
    return torch.cat([torch.zeros(0), *(value.detach().flatten().cpu() for value in weights)])


def _differences(contenders: Sequence[StrategyContender], before: Tensor, transport: Transport) -> dict[str, float]:
    """How far each change of the weights in a first step is from the first contender's, relative to the largest change."""
    changes = []
    for one in contenders:
        one.step()
        weights = one.weights()
        changes.append(weights - before if transport.rank == 0 else weights)
    found: dict[str, float] = {}
    if transport.rank == 0:
        largest = float(changes[0].abs().max())
        for one, change in zip(contenders, changes, strict=True):
            found[one.name] = float((change - changes[0]).abs().max()) / largest
    found = transport.broadcast_object(found)
    if wrong := [f"{name} by {value:.1e}" for name, value in found.items() if not value < TOLERANCE]:
        raise FiretrainError(
            f"the weights change differently than under {contenders[0].name}: {', '.join(wrong)} of the largest change; not timed"
        )
    return found


def _time(one: StrategyContender, steps: int, transport: Transport, *, keep: bool) -> None:
    one.parts_s()
    sent = sent_bytes()
    transport.barrier()
    own_s = elapsed_s(transport.device, one.step, steps)
    step_s = max(of_every_rank(transport, own_s))
    if not keep:
        return
    one.step_s.append(step_s)
    one.bytes.append((sent_bytes() - sent) // steps)
    parts_s = {part: seconds / steps for part, seconds in one.parts_s().items()}
    if one.placement is not None and one.placement.stage(transport.rank)[1] > 1:
        # a stage that ends early is idle until the last one ends, as it would be before the first passes of a next step
        parts_s[BUBBLE] = parts_s.get(BUBBLE, 0.0) + step_s - own_s
    for part, seconds in parts_s.items():
        one.parts[part].append(seconds)


def _facts(
    one: StrategyContender, first: StrategyContender, images: int, parameters: int, reduction: ReductionSection,
    transport: Transport,
) -> dict[str, Any]:  # fmt: skip
    """What was measured of a contender, whose model has so many `parameters`; collective."""
    facts: dict[str, Any] = {"step_s": spread(one.step_s), "speedup": ratios(first.step_s, one.step_s)}
    parts = {part: float(np.median(values)) for part, values in one.parts.items()}
    own = torch.tensor([parts.get(part, 0.0) for part in PARTS], dtype=torch.float64)
    by_rank = torch.stack(transport.gather(own.to(transport.device))).cpu()
    if one.placement is not None:
        facts |= {part.key: mean for part, mean in zip(PARTS, by_rank.mean(0).tolist(), strict=True)}
        facts["compute_s_by_rank"] = by_rank[:, 0].tolist()
    alone = len(transport.world.nodes) == transport.size
    sent = transport.gather(torch.tensor([float(np.median(one.bytes))], device=transport.device))
    facts["sent_bytes"] = [int(count) for count in sent] if alone else None
    if one.placement is not None:
        elsewhere = parameters - sum(layer.parameters for layer in one.placement.layers)
        facts["expected_bytes"] = expected_bytes(
            one.placement, transport.world, images, str(reduction.spec), reduction.wire_bytes, elsewhere
        )
    return facts
