"""A training step on any number of ranks: what it computes, what it waits for, how long it takes to train."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firetrain.config.names import TOPOLOGIES, installed_names
from firetrain.config.spec import Spec
from firetrain.errors import UserError
from firetrain.predict.formulas import AS_RINGS, FORMULAS, Formula, find_formula
from firetrain.predict.network import Network, Seconds, Shape
from firetrain.predict.price import price, price_chain, price_long
from firetrain.predict.question import Question
from firetrain.records.profile import MeasuredStep, Profile, Quantity
from firetrain.topology.catalogue import find_topology

DRAWS = 1000
PARTS = ("compute", "waiting for the slowest", "exposed communication", "update", "unexplained", "input")
# up to so many ranks plans without an exact formula are priced message by message
PLANNED_RANKS = 8
# the plan's price alone counts, with the spread of a ring
_NO_FORMULA = replace(FORMULAS["ring"], in_pieces=True)
_LEAST_GOODPUT = 1e-12
# by how much predictions of held-out reductions were off on average, and a little more: results/prediction
MODEL_ERROR = 0.02
# what is understood, debugged and compared with first
SIMPLEST = (
    "one rank", "native", "horovod", "ring", "tree", "parameter-server", "direct", "halving-doubling", "double-tree", "torus",
    "pipelined-tree", "hierarchical",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A reduction on so many ranks. `parts` are seconds that sum to `step_s`; low and high bound 95 % of the draws.

    `place` counts from 1 those that are surely faster; of one place: they cannot be told apart. `is_named`: the simplest of
    those in the first place, which is the one to take.
    """

    ranks: int
    reduction: str
    global_batch: int
    parts: dict[str, float]
    step_s: float
    low_s: float
    high_s: float
    images_per_s: float
    speedup: float
    efficiency: float
    hours: float | None
    cost: float | None
    kwh: float | None
    place: int = 1
    is_named: bool = False

    @property
    def limit(self) -> str:
        """The largest part."""
        return max(self.parts, key=self.parts.__getitem__)


class Model:
    """Prices steps by a profile: `DRAWS` times with what was measured drawn anew within its spread, and once as it is."""

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

    def rows(self) -> list[Row]:
        """By ranks, then by reductions; speedups are against one rank."""
        alone = self._step(1, "one rank")
        found: list[Row] = []
        for ranks in self._ask.counts:
            names = self._ask.reductions if ranks > 1 else ["one rank"]
            steps = {reduction: self._step(ranks, reduction) for reduction in names}
            rows = [self._row(ranks, reduction, parts, alone) for reduction, parts in steps.items()]
            places = places_of({reduction: _sum(parts) for reduction, parts in steps.items()})
            simplest = min((name for name, place in places.items() if place == 1), key=simplicity)
            found += [replace(row, place=places[row.reduction], is_named=row.reduction == simplest) for row in rows]
        return found

    def exchange_s(self, ranks: int, reduction: str, size_bytes: float, planned: bool = True) -> Seconds:
        """The time of one all-reduce of `size_bytes` on the wire, by draw.

        By its formula for regular shapes, for more than `PLANNED_RANKS` ranks, or if not `planned`; else the plan's price,
        with the formula's spread. UserError for what has no formula, if there are too many ranks for that.
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
        """(bytes on the wire, share of the backward pass after which they can be reduced), as training cuts them."""
        share = self._ask.wire_bytes / 4
        if not self._profile.overlap:
            return [(self._steps[-1].gradient_bytes * share, 1.0)]
        limit = self._ask.bucket_bytes or self._undrawn.link().bucket_bytes(ranks)
        found: list[tuple[float, float]] = []
        for size, ready in self._steps[-1].ready:
            # the first is a quarter as large, so that the link soon has something to do
            full = not found or found[-1][0] + size > (limit if len(found) > 1 else limit / 4)
            found = [*found, (float(size), ready)] if full else [*found[:-1], (found[-1][0] + size, ready)]
        return [(size * share, ready) for size, ready in found]

    def _row(
        self, ranks: int, reduction: str, parts: dict[str, NDArray[np.float64]], alone: dict[str, NDArray[np.float64]]
    ) -> Row:
        steps = _sum(parts)
        batch = self._ask.batch(ranks)
        one_batch = self._ask.batch(1)
        speed, speed_alone = batch / steps[0], one_batch / _sum(alone)[0]
        low, high = np.percentile(steps[1:], [2.5, 97.5])
        hours = self._hours(ranks, batch, float(steps[0]))
        nodes = Shape.of(ranks, self._ask.per_node).nodes
        price, watts = self._ask.price_per_node_hour, self._ask.watts_per_rank
        return Row(
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
        parts = dict(zip(PARTS, (compute, slowest, exposed, self._update, residual), strict=False))
        rate = self._steps[-1].images_per_s_read if self._ask.reads else None
        nodes = Shape.of(ranks, self._ask.per_node).nodes
        reading = batch / (self._draw(rate) * nodes) if rate else np.zeros(DRAWS + 1)
        return {**parts, "input": np.maximum(0.0, reading - _sum(parts))}

    def _exposed(self, ranks: int, reduction: str, compute: NDArray[np.float64]) -> NDArray[np.float64]:
        """What is left of the reductions, one bucket after the other, when the backward pass is over."""
        backward = compute * self._backward_share
        ends = np.zeros(DRAWS + 1)
        buckets = self.buckets(ranks)
        share = self.overlap(ranks, reduction)
        for size, ready in buckets:
            follows = np.where(ends > ready * backward, share, 1.0)  # the link was still busy with the one before
            ends = np.maximum(ends, ready * backward) + follows * self.exchange_s(ranks, reduction, size)
        return np.maximum(0.0, ends - backward)

    def overlap(self, ranks: int, reduction: str) -> float:
        """What a bucket takes that follows another at once, as a share of what it takes alone.

        A parameter server sends sums to one rank while another's next bucket comes in. From the plan on at most
        `PLANNED_RANKS` ranks; 1 for what flows in pieces, which fills its links anyway.
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
        """By what `exchange_s` goes."""
        shape, formula = Shape.of(ranks, self._ask.per_node), _formula(reduction, ranks)
        by_formula = formula is not _NO_FORMULA and (ranks > PLANNED_RANKS or shape.is_regular)
        return formula.text if by_formula else "its plan, message by message"

    def _hours(self, ranks: int, batch: int, step_s: float) -> float | None:
        if self._ask.images is None or self._ask.epochs is None:
            return None
        hours = self._ask.epochs(batch) * self._ask.images / batch * step_s / 3600
        return hours / goodput(self._ask, Shape.of(ranks, self._ask.per_node).nodes)

    def _compute(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Seconds per image and per step: a line through the measured batches, or through zero if there is only one."""
        batches = np.array([step.batch_per_rank for step in self._steps], dtype=float)
        draws = np.stack([self._draw(step.forward_s) + self._draw(step.backward_s) for step in self._steps])
        draws = draws / self._ask.what_if.compute
        if len(batches) == 1:
            return draws[0] / batches[0], np.zeros(DRAWS + 1)
        slope, at_zero = np.polyfit(batches, draws, 1)
        mean_s = draws.mean(axis=0)
        # a larger batch that was measured faster than a smaller one takes as long
        fixed = np.where(slope < 0, mean_s, np.maximum(0.0, at_zero))
        return np.where(slope < 0, 0.0, np.where(at_zero < 0, mean_s / batches.mean(), slope)), fixed

    def _draw(self, quantity: Quantity) -> NDArray[np.float64]:
        """The value itself, then draws around it: log-normal, as far up as was measured; around nothing half of a normal."""
        found, high = np.full(DRAWS + 1, quantity.value), quantity.high
        if high is None or high <= quantity.value:
            return found
        if quantity.value > 0:
            found[1:] *= np.exp(math.log(high / quantity.value) / 1.96 * self._random.standard_normal(DRAWS))
        else:
            found[1:] = high / 1.96 * np.abs(self._random.standard_normal(DRAWS))
        return found


def _formula(reduction: str, ranks: int) -> Formula:
    """Its own, or `_NO_FORMULA` for a plan without one. UserError if there are too many ranks."""
    try:
        return find_formula(reduction)
    except UserError:
        if ranks > PLANNED_RANKS or Spec.parse(reduction).name not in installed_names(TOPOLOGIES):
            raise
        return _NO_FORMULA


def _small(shape: Shape) -> Shape:
    """Like it, with at most `PLANNED_RANKS` ranks: of several nodes at least two."""
    if shape.nodes == 1:
        return Shape(1, min(shape.ranks, PLANNED_RANKS))
    per_node = min(shape.per_node, PLANNED_RANKS // 2)
    return Shape(min(shape.nodes, PLANNED_RANKS // per_node), per_node)


def _first(drawn: Seconds) -> float:
    return float(np.ravel(drawn)[0])


def _sum(parts: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.sum(list(parts.values()), axis=0)  # type: ignore[no-any-return]


def goodput(ask: Question, nodes: int) -> float:
    """The share of the time that is not lost to checkpoints and failures (Young 1974, Daly 2006).

    At Young's interval sqrt(2 C M): C seconds per checkpoint, M seconds between failures of any of the nodes; half an interval
    is done again after each.
    """
    if ask.mtbf_h is None:
        return 1.0
    between_s = ask.mtbf_h * 3600 / nodes
    interval_s = checkpoint_interval_s(ask, nodes)
    return max(_LEAST_GOODPUT, 1 - ask.checkpoint_s / interval_s - (interval_s / 2 + ask.checkpoint_s) / between_s)


def checkpoint_interval_s(ask: Question, nodes: int) -> float:
    """Young's."""
    return math.sqrt(2 * ask.checkpoint_s * (ask.mtbf_h or math.inf) * 3600 / nodes)


def _steps_of(profile: Profile, model: str) -> list[MeasuredStep]:
    found = sorted((step for step in profile.steps if step.model == model), key=lambda step: step.batch_per_rank)
    if not found:
        known = sorted({step.model for step in profile.steps})
        raise UserError(
            f"the profile has no steps of {model} (it has {', '.join(known) or 'none'}): firetrain bench profile measures them"
        )
    return found


def _largest_of(ranks: int) -> float:
    """The mean of the largest of so many standard normal numbers (Blom 1958)."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


def places_of(steps: Mapping[str, NDArray[np.float64]]) -> dict[str, int]:
    """The place of each reduction, from its steps by draw: 1 + how many are surely faster.

    Surely: in 97.5 % of the draws, which are of the same links for all of them, and by more than predictions have been off.
    """
    return {
        name: 1 + sum(bool(np.percentile(own / other, 2.5) > 1 + MODEL_ERROR) for other in steps.values())
        for name, own in steps.items()
    }


def simplicity(reduction: str) -> int:
    """The order in which reductions are named that cannot be told apart."""
    name = Spec.parse(reduction).name
    return SIMPLEST.index(name) if name in SIMPLEST else len(SIMPLEST)


def crossovers(rows: Sequence[Row]) -> list[tuple[int, str, str]]:
    """(ranks, what was to be taken below, what is from there on)."""
    best = {row.ranks: row for row in rows if row.ranks > 1 and row.is_named}
    order = sorted(best)
    return [
        (count, best[before].reduction, best[count].reduction)
        for before, count in zip(order, order[1:], strict=False)
        if best[before].reduction != best[count].reduction
    ]


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Numbers without rounding; `intervals`: 95 %, of what follows from the step."""
    return [{**row.__dict__, "limit": row.limit, "intervals": _intervals(row)} for row in rows]


def _intervals(row: Row) -> dict[str, tuple[float, float]]:
    shorter, longer = row.low_s / row.step_s, row.high_s / row.step_s
    speeds = {key: getattr(row, key) for key in ("images_per_s", "speedup", "efficiency")}
    spent = {key: getattr(row, key) for key in ("hours", "cost", "kwh") if getattr(row, key) is not None}
    return {key: (value / longer, value / shorter) for key, value in speeds.items()} | {
        key: (value * shorter, value * longer) for key, value in spent.items()
    }
