"""Predict the parts of a training step on any number of ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from firetrain.config.sections.strategy import DATA_PARALLEL
from firetrain.predict.costs import DRAWS, PLANNED_RANKS, Costs, Drawn, formula_of, total
from firetrain.predict.formulas import AS_RINGS
from firetrain.predict.goodput import goodput
from firetrain.predict.network import Network, Seconds, Shape
from firetrain.predict.placed import DoesNotSuit, PlacedSteps
from firetrain.predict.predicted_step import PredictedStep
from firetrain.predict.price import price, price_chain
from firetrain.predict.question import Question
from firetrain.predict.ranking import places_of, simplicity
from firetrain.records.parts import COMPUTE, EXPOSED, INPUT, OF_A_PREDICTED_STEP, SLOWEST, UNEXPLAINED, UPDATE
from firetrain.records.profile import Profile
from firetrain.topology.catalogue import find_topology
from firetrain.words import counted

PARTS = tuple(part.name for part in OF_A_PREDICTED_STEP)
Parts = dict[str, Drawn]


class Predictor:
    """Predicts steps from a profile: once from the measured values, and `DRAWS` times from values drawn from their spread.

    Arrays have `DRAWS` + 1 numbers; the first is from the measured values. `notes`: what was not predicted, or only as
    a lower bound.
    """

    def __init__(self, profile: Profile, question: Question) -> None:
        self._overlap, self._ask = profile.overlap, question
        self._costs = Costs(profile, question.model, question.what_if)
        self._placed = PlacedSteps(self._costs, question)
        self.notes: list[str] = []
        self._overlaps: dict[tuple[tuple[int, ...], str, tuple[float, ...]], float] = {}

    @property
    def network(self) -> Network:
        """The cost of links, with draws."""
        return self._costs.network

    def rows(self) -> list[PredictedStep]:
        """The predicted steps, by ranks, then by strategies and reductions; speedups are relative to one rank.

        A strategy that does not suit a number of ranks is left out there; `notes` then says why.
        """
        alone = self._with_input(1, self._step(1, "one rank"))
        found: list[PredictedStep] = []
        for ranks in self._ask.counts:
            steps = dict(self._steps_on(ranks))
            rows = [self._row(ranks, strategy, name, parts, alone) for (strategy, name), parts in steps.items()]
            places = places_of({method: total(parts) for method, parts in steps.items()})
            simplest = min((method for method, place in places.items() if place == 1), key=_simplicity, default=None)
            found += [
                replace(row, place=places[method], is_recommended=method == simplest)
                for method, row in zip(steps, rows, strict=True)
            ]
        return found

    def _steps_on(self, ranks: int) -> Iterator[tuple[tuple[str, str], Parts]]:
        """The parts of a step by (strategy, reduction)."""
        if ranks == 1:
            yield (DATA_PARALLEL, "one rank"), self._with_input(1, self._step(1, "one rank"))
            return
        for strategy in self._ask.strategies:
            try:
                for reduction in self._ask.reductions:
                    step = self._step if strategy == DATA_PARALLEL else partial(self._placed.parts, strategy)
                    yield (strategy, reduction), self._with_input(ranks, step(ranks, reduction))
            except DoesNotSuit as error:
                self.notes.append(f"skipped {strategy} on {ranks} ranks: {error}")
                continue
            if strategy != DATA_PARALLEL and (count := self._placed.unmeasured(strategy, ranks)):
                self.notes.append(
                    f"{strategy} on {ranks} ranks is a lower bound: {counted(count, 'slice')} of layers were not measured "
                    f"(firetrain bench slices CONFIG --for-ranks {ranks} --save PROFILE)"
                )

    def allreduce_s(self, ranks: int, reduction: str, size_bytes: float, planned: bool = True) -> Seconds:
        """As `Costs.allreduce_s`, on a number of ranks."""
        return self._costs.allreduce_s(Shape.of(ranks, self._ask.per_node), reduction, size_bytes, planned)

    def buckets(self, ranks: int) -> list[tuple[float, float]]:
        """The buckets of training: (bytes on the wire, share of the backward pass after which they can be reduced)."""
        share = self._ask.wire_bytes / 4
        if not self._overlap:
            return [(self._costs.last.gradient_bytes * share, 1.0)]
        limit = self._ask.bucket_bytes or self._costs.undrawn.link().bucket_bytes(ranks)
        found: list[tuple[float, float]] = []
        for size, ready in self._costs.last.ready:
            # the first bucket is a quarter as large, so that the link has work early
            full = not found or found[-1][0] + size > (limit if len(found) > 1 else limit / 4)
            found = [*found, (float(size), ready)] if full else [*found[:-1], (found[-1][0] + size, ready)]
        return [(size * share, ready) for size, ready in found]

    def _row(self, ranks: int, strategy: str, reduction: str, parts: Parts, alone: Parts) -> PredictedStep:
        steps = total(parts)
        batch = self._ask.batch(ranks)
        one_batch = self._ask.batch(1)
        speed, speed_alone = batch / steps[0], one_batch / total(alone)[0]
        low, high = np.percentile(steps[1:], [2.5, 97.5])
        hours = self._hours(ranks, batch, float(steps[0]))
        nodes = Shape.of(ranks, self._ask.per_node).nodes
        price, watts = self._ask.price_per_node_hour, self._ask.watts_per_rank
        return PredictedStep(
            ranks, reduction, batch, {key: float(value[0]) for key, value in parts.items()}, float(steps[0]), float(low),
            float(high), float(speed), float(speed / speed_alone), float(speed / speed_alone / ranks), hours,
            None if hours is None or price is None else hours * nodes * price,
            None if hours is None or watts is None else hours * ranks * watts / 1e3, strategy=strategy,
        )  # fmt: skip

    def _step(self, ranks: int, reduction: str) -> Parts:
        """The parts of a data-parallel step, without input."""
        costs, nothing = self._costs, np.zeros(DRAWS + 1)
        compute, last = costs.passes_s(math.ceil(self._ask.batch(ranks) / ranks), self._ask.per_rank_max)
        return {
            COMPUTE.name: compute,
            SLOWEST.name: costs.slowest_s(compute, ranks),
            EXPOSED.name: self._exposed(ranks, reduction, last) if ranks > 1 else nothing,
            UPDATE.name: costs.update,
            UNEXPLAINED.name: costs.unexplained if ranks > 1 else nothing,
        }

    def _with_input(self, ranks: int, parts: Parts) -> Parts:
        if not self._ask.reads:
            return {**parts, INPUT.name: np.zeros(DRAWS + 1)}
        nodes = Shape.of(ranks, self._ask.per_node).nodes
        return {**parts, INPUT.name: self._costs.input_s(self._ask.batch(ranks), nodes, total(parts))}

    def _exposed(self, ranks: int, reduction: str, compute: Drawn) -> Drawn:
        """Communication that is not hidden: seconds from the end of backward to the end of the last bucket's reduction.

        `compute`: of the last pass, during which gradients are complete. Where slices of layers were measured, communication
        takes a share of its time from compute, as under other strategies.
        """
        backward = compute * self._costs.backward_share
        ends, summing = np.zeros(DRAWS + 1), np.zeros(DRAWS + 1)
        buckets = self.buckets(ranks)
        share = self.overlap(ranks, reduction)
        for size, ready in buckets:
            follows = np.where(ends > ready * backward, share, 1.0)  # the link is still busy with the previous bucket
            seconds = follows * self.allreduce_s(ranks, reduction, size)
            ends, summing = np.maximum(ends, ready * backward) + seconds, summing + seconds
        stolen = self._costs.stolen(Shape.of(ranks, self._ask.per_node).nodes)
        return np.maximum(0.0, np.maximum(ends, backward + stolen * summing) - backward)

    def overlap(self, ranks: int, reduction: str) -> float:
        """The time of a bucket that directly follows another, relative to its time alone.

        For instance, a parameter server sends sums to one rank while it receives the next bucket from another. Simulated on at
        most `PLANNED_RANKS` ranks; 1 for pipelined plans, which keep their links busy anyway.
        """
        formula, sizes = formula_of(reduction, ranks), [int(size) for size, _ in self.buckets(ranks)]
        world = _small(Shape.of(ranks, self._ask.per_node)).world
        key = world.node_of, reduction, tuple(sizes)
        if key not in self._overlaps:
            plan = find_topology("ring" if reduction in AS_RINGS else reduction)(world)
            self._overlaps[key] = 1.0
            if len(sizes) > 1 and not (plan.pipelined and formula.in_pieces):
                first_s, *others_s = (price(plan, world, size, self._costs.undrawn) for size in sizes)
                chain_s = price_chain(plan, world, sizes, self._costs.undrawn)
                self._overlaps[key] = min(1.0, (chain_s - first_s) / sum(others_s))
        return self._overlaps[key]

    def formula_text(self, ranks: int, reduction: str) -> str:
        """The formula that `allreduce_s` uses, as text."""
        return self._costs.formula_text(Shape.of(ranks, self._ask.per_node), reduction)

    def _hours(self, ranks: int, batch: int, step_s: float) -> float | None:
        if self._ask.images is None or self._ask.epochs is None:
            return None
        hours = self._ask.epochs(batch) * self._ask.images / batch * step_s / 3600
        return hours / goodput(self._ask, Shape.of(ranks, self._ask.per_node).nodes)


def _small(shape: Shape) -> Shape:
    """A smaller shape for simulation: at most `PLANNED_RANKS` ranks, and two or more nodes if the original has several."""
    if shape.nodes == 1:
        return Shape(1, min(shape.ranks, PLANNED_RANKS))
    per_node = min(shape.per_node, PLANNED_RANKS // 2)
    return Shape(min(shape.nodes, PLANNED_RANKS // per_node), per_node)


def _simplicity(method: tuple[str, str]) -> tuple[bool, int]:
    """Data-parallel first, then by reduction."""
    return method[0] != DATA_PARALLEL, simplicity(method[1])
