"""Pipelines of a model, scored by simulating the slowest replica; the others do the same at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from firetrain.cluster import World
from firetrain.errors import UserError
from firetrain.predict.costs import Costs, first_of, groups_on_a_node
from firetrain.predict.placement_simulator import Simulated, simulate
from firetrain.predict.work import Work
from firetrain.search.sums import Sums
from firetrain.strategy.buckets import fill
from firetrain.strategy.layer import Layer
from firetrain.strategy.pipeline import pipeline
from firetrain.strategy.placement import Placement

_STAGES = (2, 3, 4, 5, 6, 7, 8)
_MICRO_BATCHES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Pipeline:
    """A pipeline on all ranks, its strategy with parameters as `name`, and the time of its step.

    `replica`: the passes of one replica; the others do the same.
    """

    name: str
    step_ns: int
    replica: Simulated


class Pipelines:
    """Pipelines of some layers on a world. `work`: what layers cost. `update_ns`: time of the optimiser for all parameters."""

    def __init__(self, layers: Sequence[Layer], world: World, costs: Costs, work: Work, update_ns: float) -> None:
        self._layers, self._world, self._work, self._update_ns = tuple(layers), world, work, update_ns
        self._network, self._stolen = costs.undrawn, costs.stolen(len(world.nodes))
        self._wait_s = costs.exchange_wait_s(world.size)
        self._unexplained_ns = 1e9 * first_of(costs.unexplained)

    def all(
        self, images: int, sums: Sums, bucket_bytes: int, wire_bytes: int, most_images: int | None = None
    ) -> Iterator[Pipeline]:
        """The pipelines of all numbers of stages and micro-batches, with a batch of `images`.

        `sums`: the time of sums of gradients; those of a stage are summed among its replicas. `most_images`: in one pass of a
        rank. Nothing if the model cannot be cut.
        """
        for stages in _STAGES:
            replicas, rest = divmod(self._world.size, stages)
            if rest or (replicas > 1 and replicas not in sums.ns):
                continue
            for micro_batches in _MICRO_BATCHES:
                if micro_batches * replicas > images:
                    break
                if most_images is not None and -(-images // (micro_batches * replicas)) > most_images:
                    continue
                try:
                    one = self._placement(stages, micro_batches)
                except UserError:
                    return
                replica = self._replica(one, stages, images)
                step_ns = self._step_ns(one, replica, stages, sums, bucket_bytes, wire_bytes)
                of_replicas = f",replicas={replicas}" if replicas > 1 else ""
                of_schedule = ",schedule=1f1b" if micro_batches > 1 else ""
                name = f"pipeline:stages={stages},micro_batches={micro_batches}{of_schedule}{of_replicas}"
                yield Pipeline(name, step_ns, replica)

    def _placement(self, stages: int, micro_batches: int) -> Placement:
        """The placement of the first replica, on its own ranks only."""
        ranks = self._world.by_node[:stages]
        world = World.from_labels([self._world.node_of[rank] for rank in ranks])
        return pipeline(self._layers, world, stages, "1f1b" if micro_batches > 1 else None, micro_batches)

    def _replica(self, one: Placement, stages: int, images: int) -> Simulated:
        """The passes of the slowest replica, on links that the others use at the same time."""
        order = self._world.by_node
        replicas = [order[first : first + stages] for first in range(0, len(order), stages)]
        network = self._network.shared(groups_on_a_node(replicas, self._world))
        worlds = {World.from_labels([self._world.node_of[rank] for rank in ranks]) for ranks in replicas}
        share = -(-images // len(replicas))
        found = [simulate(one, share, self._work, network, world, self._wait_s) for world in worlds]
        return max(found, key=lambda replica: max(replica.end_s))

    def _step_ns(
        self, one: Placement, step: Simulated, stages: int, sums: Sums, bucket_bytes: int, wire_bytes: int
    ) -> int:
        replicas = self._world.size // stages
        ends_s = [self._end_s(one, step, rank, replicas, sums, bucket_bytes, wire_bytes) for rank in range(stages)]
        held = max(sum(one.held(layer, rank) for layer in one.layers) for rank in range(stages))
        parameters = sum(layer.parameters for layer in one.layers) or 1
        return round(1e9 * max(ends_s) + self._update_ns * held / parameters + self._unexplained_ns)

    def _end_s(
        self, one: Placement, step: Simulated, rank: int, replicas: int, sums: Sums, bucket_bytes: int, wire_bytes: int
    ) -> float:
        """When the gradients of a stage are summed. Sums take a share of their time from compute, as in grids."""
        if replicas == 1:
            return step.end_s[rank]
        end_s = all_s = 0.0
        layers = [layer for layer in reversed(one.layers) if one.held(layer, rank)]
        rest = iter(layers)
        for count in fill([one.held(layer, rank) * wire_bytes for layer in layers], bucket_bytes):
            bucket = list(islice(rest, count))
            size = sum(one.held(layer, rank) * wire_bytes for layer in bucket)
            sum_s = sums(replicas, size) / 1e9
            all_s += sum_s
            end_s = max(end_s, step.ready_s[rank][bucket[-1].name]) + sum_s
        return max(end_s, step.end_s[rank] + self._stolen * all_s)
