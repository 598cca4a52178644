"""A training step under a placement, simulated rank by rank."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, NamedTuple

from firetrain.cluster import World
from firetrain.cluster.shares import share_bounds
from firetrain.predict.network import Network
from firetrain.predict.work import Work
from firetrain.strategy.buckets import fill, shared_runs
from firetrain.strategy.placement import Placement
from firetrain.strategy.schedule import order
from firetrain.strategy.slice import slice_of
from firetrain.strategy.traffic import FLOAT_BYTES, message_bytes


class SimulatedPass(NamedTuple):
    """The pass of a micro-batch through the layers of a rank, from the first that it computes to the last."""

    rank: int
    direction: Literal["forward", "backward"]
    micro_batch: int
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Simulated:
    """A simulated step, without sums of gradients and the update.

    - `compute_s`: seconds that each rank computes. `end_s`: when each rank has finished its last backward pass.
    - `ready_s`: by rank and name of a layer, when the gradients of its weights are complete.
    - `passes`: of micro-batches, rank after rank.
    """

    compute_s: tuple[float, ...]
    end_s: tuple[float, ...]
    ready_s: tuple[dict[str, float], ...]
    passes: tuple[SimulatedPass, ...] = ()


class _Task(NamedTuple):
    """One thing that every rank does in the same order: computing a layer, or an exchange before or after it."""

    kind: Literal["compute", "exchange", "sum"]
    layer: int
    direction: Literal["forward", "backward"]
    micro_batch: int


@dataclass
class _Transfers:
    """What ranks send: (receiver, bytes) by sender; and the number of messages that each rank gets."""

    sent: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    expected: Counter[int] = field(default_factory=Counter)

    def add(self, sender: int, receiver: int, size_bytes: int) -> None:
        """Add a message."""
        self.sent[sender].append((receiver, size_bytes))
        self.expected[receiver] += 1


def simulate(
    placement: Placement, images: int, work: Work, network: Network, world: World, exchange_wait_s: float = 0.0
) -> Simulated:
    """Simulate the forward and backward passes of a batch of `images`, with all exchanges.

    Messages queue at the links of their sender and of their receiver, in each direction: inside a node each rank has a link,
    between nodes the ranks of a node share one. Those of a rank leave, and arrive, at least the network's gap apart. A rank
    waits for what it needs, not for what it sends.
    `network`: without draws. `exchange_wait_s`: seconds added to an exchange for a rank that both sends and receives.
    """
    return _StepSimulation(placement, images, work, network, world, exchange_wait_s).run()


class _StepSimulation:
    def __init__(
        self, placement: Placement, images: int, work: Work, network: Network, world: World, exchange_wait_s: float
    ) -> None:
        self._placement, self._work, self._network, self._world = placement, work, network, world
        self._exchange_wait_s = exchange_wait_s
        self._micro_batches = _micro_batches(placement, images)
        self._exchanges = {size: _exchanges(placement, size) for size in set(self._micro_batches)}
        self._clock_s = [0.0] * placement.ranks
        self._compute_s = [0.0] * placement.ranks
        self._ready_s: list[dict[str, float]] = [{} for _ in range(placement.ranks)]
        self._passes: dict[tuple[int, Literal["forward", "backward"], int], SimulatedPass] = {}
        self._free_s: dict[tuple[str, str, int], float] = defaultdict(float)
        self._arrived: dict[tuple[_Task, int], list[float]] = defaultdict(list)
        self._waiting: set[tuple[_Task, int]] = set()

    def run(self) -> Simulated:
        programs = [self._program(rank) for rank in range(self._placement.ranks)]
        current = [next(program, None) for program in programs]
        queue = [(0.0, rank) for rank in range(self._placement.ranks)]
        while queue:
            _, rank = heapq.heappop(queue)
            operation = current[rank]
            if operation is None:
                continue
            if operation.kind == "compute":
                self._compute(operation, rank)
            elif (operation, rank) not in self._waiting:
                for woken in self._send(operation, rank):
                    heapq.heappush(queue, (self._clock_s[woken], woken))
            if operation.kind == "compute" or self._has_received(operation, rank):
                current[rank] = next(programs[rank], None)
                heapq.heappush(queue, (self._clock_s[rank], rank))
        assert not any(current), f"{self._placement.strategy}: ranks wait for each other"
        passes = tuple(self._passes[key] for key in sorted(self._passes))
        return Simulated(tuple(self._compute_s), tuple(self._clock_s), tuple(self._ready_s), passes)

    def _program(self, rank: int) -> Iterator[_Task]:
        """What a rank does, in the order in which the executor does it."""
        placement = self._placement
        has_stages = placement.micro_batches > 1 and placement.stage(rank)[1] > 1
        by_schedule = (placement.schedule, *placement.stage(rank)) if has_stages else ("1f1b", 0, 1)
        for direction, number in order(*by_schedule, placement.micro_batches):
            exchanges = self._exchanges[self._micro_batches[number]]
            layers = range(len(placement.layers))
            for layer in layers if direction == "forward" else reversed(layers):
                one = _Task("compute", layer, direction, number)
                before, after = one._replace(kind="exchange"), one._replace(kind="sum")
                whole = (before, one, after) if direction == "forward" else (after, one, before)
                yield from (some for some in whole if some.kind == "compute" or some[:3] in exchanges)

    def _compute(self, operation: _Task, rank: int) -> None:
        layer, backward = self._placement.layers[operation.layer], operation.direction == "backward"
        images = self._micro_batches[operation.micro_batch]
        share = slice_of(layer, self._placement.splits[layer.name], rank, images)
        if share is not None:
            began_s, seconds = self._clock_s[rank], self._work.seconds(layer, share)[backward]
            self._clock_s[rank] += seconds
            self._compute_s[rank] += seconds
            key = rank, operation.direction, operation.micro_batch
            first = self._passes.setdefault(key, SimulatedPass(*key, began_s, began_s))
            self._passes[key] = first._replace(end_s=self._clock_s[rank])
        if backward:
            self._ready_s[rank][layer.name] = self._clock_s[rank]

    def _exchange(self, operation: _Task) -> _Transfers:
        return self._exchanges[self._micro_batches[operation.micro_batch]][operation[:3]]

    def _send(self, operation: _Task, rank: int) -> Iterator[int]:
        """Send what this rank has for others; yields the ranks that this unblocks."""
        for receiver, size_bytes in self._exchange(operation).sent.get(rank, ()):
            self._arrived[operation, receiver].append(self._arrival_s(rank, receiver, size_bytes))
            if (operation, receiver) in self._waiting and self._has_all(operation, receiver):
                yield receiver

    def _arrival_s(self, sender: int, receiver: int, size_bytes: int) -> float:
        """When a message that its sender is ready to send arrives."""
        here, there = self._world.node_of[sender], self._world.node_of[receiver]
        if here == there:
            link, ends = self._network.inside, (("rank", "out", sender), ("rank", "in", receiver))
        else:
            link, ends = self._network.between, (("node", "out", here), ("node", "in", there))
        leaves, arrives = ("gap", "out", sender), ("gap", "in", receiver)
        began_s = max(self._clock_s[sender], self._free_s[leaves])
        for end in ends:
            self._free_s[end] = max(began_s, self._free_s[end]) + size_bytes * float(link.s_per_byte)
        arrived_s = max(max(self._free_s[end] for end in ends) + float(link.latency_s), self._free_s[arrives])
        self._free_s[leaves], self._free_s[arrives] = (
            at_s + float(self._network.gap_s) for at_s in (began_s, arrived_s)
        )
        return arrived_s

    def _has_received(self, operation: _Task, rank: int) -> bool:
        """Whether everything that this rank needs is on its way; its clock then goes on to the last arrival."""
        if not self._has_all(operation, rank):
            self._waiting.add((operation, rank))
            return False
        self._clock_s[rank] = max([self._clock_s[rank], *self._arrived[operation, rank]])
        exchanged = self._exchange(operation)
        if exchanged.expected[rank] and exchanged.sent.get(rank):
            self._clock_s[rank] += self._exchange_wait_s
        return True

    def _has_all(self, operation: _Task, rank: int) -> bool:
        return len(self._arrived[operation, rank]) == self._exchange(operation).expected[rank]


def exposed_sums_s(
    placement: Placement,
    step: Simulated,
    bucket_bytes: float,
    sum_s: Callable[[tuple[int, ...], int], float],
    stolen: float = 0.0,
) -> float:
    """Seconds from the end of all backward passes to the end of the last sum of gradients.

    A bucket has gradients of one group of sharers. Its sum starts when all of them have computed it, and have ended their sums
    before. Exchanges on the same links are not considered. `sum_s(ranks, size_bytes)`: seconds of a sum. `stolen`: the share of
    its time that it takes from compute.
    """
    buckets: list[tuple[float, tuple[int, ...], int]] = []
    for group, layers in shared_runs(placement):
        rest = reversed(layers)
        for count in fill([FLOAT_BYTES * placement.held(layer, group[0]) for layer in reversed(layers)], bucket_bytes):
            bucket = list(islice(rest, count))
            size = sum(FLOAT_BYTES * placement.held(layer, group[0]) for layer in bucket)
            buckets.append((max(step.ready_s[rank][layer.name] for layer in bucket for rank in group), group, size))
    ends_s, all_s = [0.0] * placement.ranks, [0.0] * placement.ranks
    for ready_s, group, size in sorted(buckets):
        seconds = sum_s(group, size)
        end_s = max(ready_s, *(ends_s[rank] for rank in group)) + seconds
        for rank in group:
            ends_s[rank], all_s[rank] = end_s, all_s[rank] + seconds
    of_compute_s = (end_s + stolen * of_sums_s for end_s, of_sums_s in zip(step.end_s, all_s, strict=True))
    return max(0.0, max(*ends_s, *of_compute_s) - max(step.end_s))


def _micro_batches(placement: Placement, images: int) -> list[int]:
    """The number of images of each micro-batch."""
    bounds = (share_bounds(images, number, placement.micro_batches) for number in range(placement.micro_batches))
    return [end - first for first, end in bounds]


def _exchanges(placement: Placement, images: int) -> dict[tuple[str, int, str], _Transfers]:
    """The exchanges of a micro-batch by kind, layer and direction; gradients travel the other way."""
    found: dict[tuple[str, int, str], _Transfers] = defaultdict(_Transfers)
    numbers = {layer.name: number for number, layer in enumerate(placement.layers)}
    for message in placement.messages(images):
        size_bytes, layer = message_bytes(placement, message), numbers[message.layer]
        kind = "sum" if message.layer == message.source else "exchange"
        found[kind, layer, "forward"].add(message.sender, message.receiver, size_bytes)
        found[kind, layer, "backward"].add(message.receiver, message.sender, size_bytes)
    return dict(found)
