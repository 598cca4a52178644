"""Predict the parts of a step under strategies other than data-parallel."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

import numpy as np

from firetrain.cluster import World
from firetrain.config.sections.strategy import DATA_PARALLEL
from firetrain.errors import UserError
from firetrain.limits import MOST_MICRO_BATCHES, MOST_PLACED_RANKS
from firetrain.predict.costs import DRAWS, Costs, Drawn, first_of, groups_on_a_node, shape_of, with_spread
from firetrain.predict.network import Shape
from firetrain.predict.placement_simulator import Simulated, exposed_sums_s, simulate
from firetrain.predict.question import Question
from firetrain.predict.work import Work
from firetrain.records.parts import BUBBLE, COMPUTE, EXCHANGE, EXPOSED, SLOWEST, UNEXPLAINED, UPDATE
from firetrain.strategy import Placement, find_strategy
from firetrain.strategy.slice import working_slices
from firetrain.strategy.traffic import FLOAT_BYTES


class DoesNotSuit(Exception):
    """A strategy cannot place the model on these ranks."""


class PlacedSteps:
    """Predicts steps under placements of the question's layers."""

    def __init__(self, costs: Costs, question: Question) -> None:
        self._costs, self._ask = costs, question
        self._known: dict[tuple[str, tuple[int, ...], int], tuple[Placement, Simulated]] = {}

    @cached_property
    def _work(self) -> Work:
        return self._costs.work(self._ask.layers)

    def parts(self, strategy: str, ranks: int, reduction: str) -> dict[str, Drawn]:
        """The parts of a step: simulated with the measured values, with the relative spread of their draws.

        Compute is the mean of all ranks. What is missing to the end of the last rank is the exchange of activations or, with
        stages, the bubble. DoesNotSuit names the reason why the strategy cannot place the model on these ranks.
        """
        shape, batch, costs = Shape.of(ranks, self._ask.per_node), self._ask.batch(ranks), self._costs
        placement, step = self._step(strategy, shape.world, batch)
        mean_s = float(np.mean(step.compute_s))
        compute = with_spread(mean_s, costs.compute_s(math.ceil(batch / ranks)))
        link = (costs.network.between if shape.nodes > 1 else costs.network.inside).s_per_byte
        has_stages = placement.stage(0)[1] > 1
        held = max(sum(placement.held(layer, rank) for layer in placement.layers) for rank in range(ranks))
        return {
            COMPUTE.name: compute,
            SLOWEST.name: np.zeros(DRAWS + 1) if self._work.is_of_slowest else costs.slowest_s(compute, ranks),
            (BUBBLE if has_stages else EXCHANGE).name: with_spread(
                max(step.end_s) - mean_s, compute if has_stages else link
            ),
            EXPOSED.name: with_spread(self._exposed_s(placement, step, shape, reduction), link),
            UPDATE.name: (costs.update + costs.gradients_s)
            * held
            / sum(layer.parameters for layer in placement.layers),
            UNEXPLAINED.name: costs.unexplained,
        }

    def unmeasured(self, strategy: str, ranks: int) -> int:
        """How many slices of a placement count with a lower bound of their time, where others were measured."""
        batch = self._ask.batch(ranks)
        placement, _ = self._step(strategy, Shape.of(ranks, self._ask.per_node).world, batch)
        return len(working_slices(placement, batch) - set(self._costs.measured)) if self._costs.measured else 0

    def _step(self, strategy: str, world: World, batch: int) -> tuple[Placement, Simulated]:
        """A placement and its step, simulated once for all reductions."""
        key = strategy, world.node_of, batch
        if key not in self._known:
            if world.size > MOST_PLACED_RANKS:
                raise DoesNotSuit(
                    f"strategies other than {DATA_PARALLEL} are predicted for up to {MOST_PLACED_RANKS} ranks"
                )
            try:
                placement = self._cut(find_strategy(strategy)(self._ask.layers, world), batch)
            except UserError as error:
                raise DoesNotSuit(str(error)) from None
            costs = self._costs
            step = simulate(placement, batch, self._work, costs.undrawn, world, costs.exchange_wait_s(world.size))
            self._known[key] = placement, step
        return self._known[key]

    def _cut(self, placement: Placement, batch: int) -> Placement:
        """The placement with as many micro-batches as it takes if a rank computes `per_rank_max` images at once."""
        first = next(layer for layer in placement.layers if not layer.sources)
        most = (self._ask.per_rank_max or batch) * placement.splits[first.name].images
        count = max(placement.micro_batches, -(-batch // most))
        if count > batch:
            raise DoesNotSuit(f"a batch of {batch} images cannot be cut into {count} micro-batches")
        if count > MOST_MICRO_BATCHES:
            raise DoesNotSuit(f"its {count:,} micro-batches are too many to simulate")
        return replace(placement, micro_batches=count)

    def _exposed_s(self, placement: Placement, step: Simulated, shape: Shape, reduction: str) -> float:
        share = self._ask.wire_bytes / FLOAT_BYTES
        alike = {group: groups for groups in map(placement.sharers, placement.layers) for group in groups}

        def sum_s(group: tuple[int, ...], size_bytes: int) -> float:
            together = groups_on_a_node(alike[group], shape.world)
            among = shape_of(group, shape.world)
            return first_of(self._costs.allreduce_s(among, reduction, size_bytes * share, groups=together))

        bucket_bytes = self._ask.bucket_bytes or self._costs.undrawn.link().bucket_bytes(shape.ranks)
        return exposed_sums_s(placement, step, bucket_bytes, sum_s, self._costs.stolen(shape.nodes))
