"""Predict the parts of a training step on any number of ranks."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from firetrain.config.names import TOPOLOGIES, installed_names
from firetrain.config.spec import Spec
from firetrain.errors import UserError
from firetrain.predict.formulas import AS_RINGS, FORMULAS, Formula, find_formula
from firetrain.predict.goodput import goodput
from firetrain.predict.network import Network, Seconds, Shape
from firetrain.predict.predicted_step import PredictedStep, places_of, simplicity
from firetrain.predict.price import price, price_chain, price_long
from firetrain.predict.question import Question
from firetrain.records.parts import COMPUTE, EXPOSED, INPUT, OF_A_PREDICTED_STEP, SLOWEST, UNEXPLAINED, UPDATE
from firetrain.records.profile import MeasuredStep, Profile, Quantity
from firetrain.topology.catalogue import find_topology

DRAWS = 1000
PARTS = tuple(part.name for part in OF_A_PREDICTED_STEP)
# up to this number of ranks, plans without an exact formula are simulated message by message
PLANNED_RANKS = 8
# for plans without a formula: the value is simulated, and only the spread is that of a ring
_NO_FORMULA = replace(FORMULAS["ring"], in_pieces=True)


class Predictor:
    """Predicts steps from a profile: once from the measured values, and `DRAWS` times from values drawn from their spread.

    Arrays have `DRAWS` + 1 numbers; the first is from the measured values.
    """

    def __init__(self, profile: Profile, question: Question) -> None:
        self._profile, self._ask = profile, question
        self._random = np.random.default_rng(1)
        self._steps = _steps_of(profile, question.model)
        what_if = question.what_if
        self.network = Network.measured(profile, self._draw).what_if(
            what_if.bandwidth, what_if.latency, what_if.oversubscription, int(what_if.leaf)
        )
        self._undrawn = self.network.undrawn()
        self._planned: dict[tuple[Shape, str, float], float] = {}
        self._overlaps: dict[tuple[tuple[int, ...], str, tuple[float, ...]], float] = {}
        self._per_image, self._fixed = self._compute()
        last = self._steps[-1]
        self._update = self._draw(last.update_s) / question.what_if.compute
        self._jitter = self._draw(last.jitter)
        forward, backward = last.forward_s.value, last.backward_s.value
        self._backward_share = backward / (forward + backward)
        residuals = [one for one in profile.residuals if one.model == question.model]
        self._residual = self._draw(residuals[-1].seconds) if residuals else np.zeros(DRAWS + 1)

    def rows(self) -> list[PredictedStep]:
        """The predicted steps, by ranks, then by reductions; speedups are relative to one rank."""
        alone = self._step(1, "one rank")
        found: list[PredictedStep] = []
        for ranks in self._ask.counts:
            names = self._ask.reductions if ranks > 1 else ["one rank"]
            steps = {reduction: self._step(ranks, reduction) for reduction in names}
            rows = [self._row(ranks, reduction, parts, alone) for reduction, parts in steps.items()]
            places = places_of({reduction: _sum(parts) for reduction, parts in steps.items()})
            simplest = min((name for name, place in places.items() if place == 1), key=simplicity)
            found += [replace(row, place=places[row.reduction], is_named=row.reduction == simplest) for row in rows]
        return found

    def exchange_s(self, ranks: int, reduction: str, size_bytes: float, planned: bool = True) -> Seconds:
        """Seconds of one all-reduce of `size_bytes` on the wire, per draw.

        A formula is used for regular shapes, for more than `PLANNED_RANKS` ranks, and if not `planned`. Otherwise the plan is
        simulated, with the spread of the formula. UserError for a reduction without a formula on too many ranks.
        """
        shape = Shape.of(ranks, self._ask.per_node)
        formula = _formula(reduction, ranks)
        drawn = formula.seconds(shape, size_bytes, self.network)
        if ranks > PLANNED_RANKS or (formula is not _NO_FORMULA and (shape.is_regular or not planned)):
            return drawn
        return drawn * (self._price(shape, reduction, size_bytes, formula.in_pieces) / _first(drawn))

    def _price(self, shape: Shape, reduction: str, size_bytes: float, in_pieces: bool) -> float:
        key = shape, reduction, size_bytes
        if key not in self._planned:
            plan = find_topology("ring" if reduction in AS_RINGS else reduction)(shape.world)
            self._planned[key] = price_long(plan, shape.world, int(size_bytes), self._undrawn, in_pieces)
        return self._planned[key]

    def buckets(self, ranks: int) -> list[tuple[float, float]]:
        """The buckets of training: (bytes on the wire, share of the backward pass after which they can be reduced)."""
        share = self._ask.wire_bytes / 4
        if not self._profile.overlap:
            return [(self._steps[-1].gradient_bytes * share, 1.0)]
        limit = self._ask.bucket_bytes or self._undrawn.link().bucket_bytes(ranks)
        found: list[tuple[float, float]] = []
        for size, ready in self._steps[-1].ready:
            # the first bucket is a quarter as large, so that the link has work early
            full = not found or found[-1][0] + size > (limit if len(found) > 1 else limit / 4)
            found = [*found, (float(size), ready)] if full else [*found[:-1], (found[-1][0] + size, ready)]
        return [(size * share, ready) for size, ready in found]

    def _row(
        self, ranks: int, reduction: str, parts: dict[str, NDArray[np.float64]], alone: dict[str, NDArray[np.float64]]
    ) -> PredictedStep:
        steps = _sum(parts)
        batch = self._ask.batch(ranks)
        one_batch = self._ask.batch(1)
        speed, speed_alone = batch / steps[0], one_batch / _sum(alone)[0]
        low, high = np.percentile(steps[1:], [2.5, 97.5])
        hours = self._hours(ranks, batch, float(steps[0]))
        nodes = Shape.of(ranks, self._ask.per_node).nodes
        price, watts = self._ask.price_per_node_hour, self._ask.watts_per_rank
        return PredictedStep(
            ranks, reduction, batch, {key: float(value[0]) for key, value in parts.items()}, float(steps[0]), float(low),
            float(high), float(speed), float(speed / speed_alone), float(speed / speed_alone / ranks), hours,
            None if hours is None or price is None else hours * nodes * price,
            None if hours is None or watts is None else hours * ranks * watts / 1e3,
        )  # fmt: skip

    def _step(self, ranks: int, reduction: str) -> dict[str, NDArray[np.float64]]:
        batch = self._ask.batch(ranks)
        share = math.ceil(batch / ranks)
        compute = self._fixed + share * self._per_image
        slowest = compute * self._jitter * _largest_of(ranks)
        exposed = self._exposed(ranks, reduction, compute) if ranks > 1 else np.zeros(DRAWS + 1)
        residual = self._residual if ranks > 1 else np.zeros(DRAWS + 1)
        parts = {
            COMPUTE.name: compute, SLOWEST.name: slowest, EXPOSED.name: exposed, UPDATE.name: self._update,
            UNEXPLAINED.name: residual,
        }  # fmt: skip
        rate = self._steps[-1].images_per_s_read if self._ask.reads else None
        nodes = Shape.of(ranks, self._ask.per_node).nodes
        reading = batch / (self._draw(rate) * nodes) if rate else np.zeros(DRAWS + 1)
        return {**parts, INPUT.name: np.maximum(0.0, reading - _sum(parts))}

    def _exposed(self, ranks: int, reduction: str, compute: NDArray[np.float64]) -> NDArray[np.float64]:
        """Communication that is not hidden: seconds from the end of backward to the end of the last bucket's reduction."""
        backward = compute * self._backward_share
        ends = np.zeros(DRAWS + 1)
        buckets = self.buckets(ranks)
        share = self.overlap(ranks, reduction)
        for size, ready in buckets:
            follows = np.where(ends > ready * backward, share, 1.0)  # the link is still busy with the previous bucket
            ends = np.maximum(ends, ready * backward) + follows * self.exchange_s(ranks, reduction, size)
        return np.maximum(0.0, ends - backward)

    def overlap(self, ranks: int, reduction: str) -> float:
        """The time of a bucket that directly follows another, relative to its time alone.

        For instance, a parameter server sends sums to one rank while it receives the next bucket from another. Simulated on at
        most `PLANNED_RANKS` ranks; 1 for pipelined plans, which keep their links busy anyway.
        """
        formula, sizes = _formula(reduction, ranks), [int(size) for size, _ in self.buckets(ranks)]
        world = _small(Shape.of(ranks, self._ask.per_node)).world
        key = world.node_of, reduction, tuple(sizes)
        if key not in self._overlaps:
            plan = find_topology("ring" if reduction in AS_RINGS else reduction)(world)
            self._overlaps[key] = 1.0
            if len(sizes) > 1 and not (plan.pipelined and formula.in_pieces):
                first_s, *others_s = (price(plan, world, size, self._undrawn) for size in sizes)
                chain_s = price_chain(plan, world, sizes, self._undrawn)
                self._overlaps[key] = min(1.0, (chain_s - first_s) / sum(others_s))
        return self._overlaps[key]

    def formula_text(self, ranks: int, reduction: str) -> str:
        """The formula that `exchange_s` uses, as text."""
        shape, formula = Shape.of(ranks, self._ask.per_node), _formula(reduction, ranks)
        by_formula = formula is not _NO_FORMULA and (ranks > PLANNED_RANKS or shape.is_regular)
        return formula.text if by_formula else "simulation of its plan"

    def _hours(self, ranks: int, batch: int, step_s: float) -> float | None:
        if self._ask.images is None or self._ask.epochs is None:
            return None
        hours = self._ask.epochs(batch) * self._ask.images / batch * step_s / 3600
        return hours / goodput(self._ask, Shape.of(ranks, self._ask.per_node).nodes)

    def _compute(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(seconds per image, seconds per step): a line fitted to the measured batches, or through zero if there is only one."""
        batches = np.array([step.batch_per_rank for step in self._steps], dtype=float)
        draws = np.stack([self._draw(step.forward_s) + self._draw(step.backward_s) for step in self._steps])
        draws = draws / self._ask.what_if.compute
        if len(batches) == 1:
            return draws[0] / batches[0], np.zeros(DRAWS + 1)
        slope, at_zero = np.polyfit(batches, draws, 1)
        mean_s = draws.mean(axis=0)
        # if the fit has a negative slope, use a constant
        fixed = np.where(slope < 0, mean_s, np.maximum(0.0, at_zero))
        return np.where(slope < 0, 0.0, np.where(at_zero < 0, mean_s / batches.mean(), slope)), fixed

    def _draw(self, quantity: Quantity) -> NDArray[np.float64]:
        """The value, then draws around it: log-normal with the interval's upper end; half-normal if the value is zero."""
        found, high = np.full(DRAWS + 1, quantity.value), quantity.high
        if high is None or high <= quantity.value:
            return found
        if quantity.value > 0:
            found[1:] *= np.exp(math.log(high / quantity.value) / 1.96 * self._random.standard_normal(DRAWS))
        else:
            found[1:] = high / 1.96 * np.abs(self._random.standard_normal(DRAWS))
        return found


def _formula(reduction: str, ranks: int) -> Formula:
    """The formula of a reduction, `_NO_FORMULA` for a plan without one; UserError if that has too many ranks to simulate."""
    try:
        return find_formula(reduction)
    except UserError:
        if ranks > PLANNED_RANKS or Spec.parse(reduction).name not in installed_names(TOPOLOGIES):
            raise
        return _NO_FORMULA


def _small(shape: Shape) -> Shape:
    """A smaller shape for simulation: at most `PLANNED_RANKS` ranks, and two or more nodes if the original has several."""
    if shape.nodes == 1:
        return Shape(1, min(shape.ranks, PLANNED_RANKS))
    per_node = min(shape.per_node, PLANNED_RANKS // 2)
    return Shape(min(shape.nodes, PLANNED_RANKS // per_node), per_node)


def _first(drawn: Seconds) -> float:
    return float(np.ravel(drawn)[0])


def _sum(parts: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.sum(list(parts.values()), axis=0)  # type: ignore[no-any-return]


def _steps_of(profile: Profile, model: str) -> list[MeasuredStep]:
    found = sorted((step for step in profile.steps if step.model == model), key=lambda step: step.batch_per_rank)
    if not found:
        known = sorted({step.model for step in profile.steps})
        raise UserError(
            f"the profile has no steps of {model} (it has {', '.join(known) or 'none'}): run firetrain bench profile"
        )
    return found


def _largest_of(ranks: int) -> float:
    """The expected maximum of `ranks` standard normal numbers (Blom 1958)."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0
