"""What work costs on a cluster: computing, sums of gradients, reading; from a profile, with draws from its spread."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from firetrain.cluster import World
from firetrain.config.names import TOPOLOGIES, installed_names
from firetrain.config.spec import Spec
from firetrain.errors import UserError
from firetrain.predict.formulas import AS_RINGS, FORMULAS, Formula, find_formula
from firetrain.predict.network import Network, Seconds, Shape
from firetrain.predict.price import price_long
from firetrain.predict.question import WhatIf
from firetrain.predict.work import MeasuredWork, ProportionalWork, Work, whole_to_layers
from firetrain.records.profile import MeasuredStep, Profile, Quantity
from firetrain.strategy.layer import Layer
from firetrain.strategy.slice import Slice
from firetrain.topology.catalogue import find_topology

DRAWS = 1000
Drawn = NDArray[np.float64]
# up to this number of ranks, plans without an exact formula are simulated message by message
PLANNED_RANKS = 8
# for plans without a formula: the value is simulated, and only the spread is that of a ring
_NO_FORMULA = replace(FORMULAS["ring"], in_pieces=True)


class Costs:
    """Seconds of the work of a training step: once from the measured values, and `DRAWS` times from draws of their spread.

    Arrays have `DRAWS` + 1 numbers; the first is from the measured values.

    - `network`, `undrawn`: the cost of links, with draws and without.
    - `last`: the step that was measured last. `backward_share`: share of the backward pass in its compute time.
    - `measured`: seconds of the forward and backward passes of slices of layers. `ceilings`: of a rank; None if not measured.
    - `update`: seconds of the optimiser's update. `gradients_s`: of setting gradients to zero and dividing them, where slices of
      layers were measured, which are without it. `residual`: seconds of a step that are not explained otherwise.
    """

    def __init__(self, profile: Profile, model: str, what_if: WhatIf) -> None:
        self._random = np.random.default_rng(1)
        self._what_if = what_if
        self._steps = _steps_of(profile, model)
        self.network = Network.measured(profile, self._draw).what_if(
            what_if.bandwidth, what_if.latency, what_if.oversubscription, int(what_if.leaf)
        )
        self.undrawn = self.network.undrawn()
        self._planned: dict[tuple[Shape, str, float, int], float] = {}
        self._per_image, self._fixed = self._compute()
        self.last = self._steps[-1]
        self.update = self._draw(self.last.update_s) / what_if.compute
        self._jitter = self._draw(self.last.jitter)
        forward, backward = self.last.forward_s.value, self.last.backward_s.value
        self.backward_share = backward / (forward + backward)
        slices = [one for one in profile.slices if one.model == model]
        self.measured = {
            Slice(one.layer, one.images, one.outputs, one.inputs): (one.forward_s, one.backward_s) for one in slices
        }
        self.ceilings = profile.ceilings
        stolen = next((one for one in profile.stolen if one.model == model), None)
        self._stolen_share, self._overlaps = stolen.share if stolen else 0.0, profile.overlap
        self._has_nodes = any(link.level == "between nodes" for link in profile.links)
        # waits are for passes of other ranks
        self._wait_s = (stolen.exchange_wait_s if stolen else 0.0) / what_if.compute
        self._ranks_that_waited = stolen.ranks if stolen else 1
        gradients_s = stolen.gradients_s if stolen and slices else 0.0  # otherwise it is part of the passes
        self.gradients_s = gradients_s / what_if.compute
        residuals = [one for one in profile.residuals if one.model == model]
        self.residual = self._draw(residuals[-1].seconds) if residuals else np.zeros(DRAWS + 1)

    @property
    def unexplained(self) -> Drawn:
        """The residual, unless slices were measured: these, and what communication takes from compute, explain a step."""
        return np.zeros(DRAWS + 1) if self.measured else self.residual

    def compute_s(self, images: int) -> Drawn:
        """Seconds of the forward and backward passes of one rank with all layers, on its `images`."""
        return self._fixed + images * self._per_image

    def passes_s(self, images: int, most: int | None) -> tuple[Drawn, Drawn]:
        """Seconds of all passes of a rank over its `images`, of which it computes at most `most` at once, and of the last one."""
        count = 1 if most is None else max(1, -(-images // most))
        small, larger = divmod(images, count)  # the last one is the largest
        last = self.compute_s(-(-images // count))
        return larger * last + (count - larger) * self.compute_s(small), last

    def work(self, layers: Sequence[Layer]) -> Work:
        """The computing time of slices of the model's layers, undrawn: measured, if the profile has slices of the model."""
        image_s, fixed_s = float(self._per_image[0]), float(self._fixed[0])
        if not self.measured or self.ceilings is None:
            return ProportionalWork.of(layers, self.last.batch_per_rank, image_s, fixed_s, self.backward_share)
        in_a_model = whole_to_layers(self.measured, layers, self._whole_s())
        return MeasuredWork(self.measured, self.ceilings, in_a_model, 1 / self._what_if.compute)

    def stolen(self, nodes: int) -> float:
        """The share of compute that is lost while gradients are summed among ranks of so many nodes.

        Bytes take the same work of a processor however long they travel, up to all of its time. Nothing is computed meanwhile if
        the profile's gradients are summed after the backward pass.
        """
        if not self._overlaps:
            return 1.0
        bandwidth = self._what_if.bandwidth if self._has_nodes and nodes > 1 else 1.0
        return min(1.0, self._stolen_share * bandwidth / self._what_if.compute)

    def exchange_wait_s(self, ranks: int) -> float:
        """Extra seconds of an exchange among so many ranks, because all wait for the slowest.

        They grow from those of the ranks that measured them as the largest of that many normal numbers does.
        """
        measured = _largest_of(self._ranks_that_waited)
        return self._wait_s * (_largest_of(ranks) / measured if measured else 1.0)

    def update_s(self) -> float:
        """Seconds of the update of all parameters, undrawn, and of what else a step does with their gradients."""
        return float(self.update[0]) + self.gradients_s

    def _whole_s(self) -> dict[int, float]:
        """Seconds of both passes of the whole model on one rank, for the numbers of images of which slices were measured.

        They are those of the profile, whatever is asked for, without what is done with gradients.
        """
        steps = {step.batch_per_rank: step.forward_s.value + step.backward_s.value for step in self._steps}
        compute, images = self._what_if.compute, {slice_.images for slice_ in self.measured}
        passes_s = {one: steps.get(one, compute * float(self.compute_s(one)[0])) for one in images}
        return {one: seconds - compute * self.gradients_s for one, seconds in passes_s.items()}

    def slowest_s(self, compute: Drawn, ranks: int) -> Drawn:
        """The expected extra compute time of the slowest of several ranks, in seconds."""
        return compute * self._jitter * _largest_of(ranks)

    def input_s(self, images: int, nodes: int, step: Drawn) -> Drawn:
        """The seconds by which reading and preparing a global batch takes longer than its step."""
        rate = self.last.images_per_s_read
        return np.maximum(0.0, images / (self._draw(rate) * nodes) - step) if rate else np.zeros(DRAWS + 1)

    def allreduce_s(
        self, shape: Shape, reduction: str, size_bytes: float, planned: bool = True, groups: int = 1
    ) -> Seconds:
        """Seconds of one all-reduce of `size_bytes` on the wire, per draw. `groups`: how many groups share a node's link.

        A formula is used for regular shapes, for more than `PLANNED_RANKS` ranks, and if not `planned`. Otherwise the plan is
        simulated, with the spread of the formula. UserError for a reduction without a formula on too many ranks.
        """
        formula = formula_of(reduction, shape.ranks)
        drawn = formula.seconds(shape, size_bytes, self.network.shared(groups))
        if shape.ranks > PLANNED_RANKS or (formula is not _NO_FORMULA and (shape.is_regular or not planned)):
            return drawn
        return drawn * (self._price(shape, reduction, size_bytes, formula.in_pieces, groups) / first_of(drawn))

    def _price(self, shape: Shape, reduction: str, size_bytes: float, in_pieces: bool, groups: int) -> float:
        key = shape, reduction, size_bytes, groups
        if key not in self._planned:
            plan = find_topology("ring" if reduction in AS_RINGS else reduction)(shape.world)
            self._planned[key] = price_long(plan, shape.world, int(size_bytes), self.undrawn.shared(groups), in_pieces)
        return self._planned[key]

    def formula_text(self, shape: Shape, reduction: str) -> str:
        """The formula that `allreduce_s` uses, as text."""
        formula = formula_of(reduction, shape.ranks)
        by_formula = formula is not _NO_FORMULA and (shape.ranks > PLANNED_RANKS or shape.is_regular)
        return formula.text if by_formula else "simulation of its plan"

    def _compute(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(seconds per image, seconds per step): a line fitted to the measured batches, or through zero if there is only one."""
        batches = np.array([step.batch_per_rank for step in self._steps], dtype=float)
        draws = np.stack([self._draw(step.forward_s) + self._draw(step.backward_s) for step in self._steps])
        draws = draws / self._what_if.compute
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


def formula_of(reduction: str, ranks: int) -> Formula:
    """The formula of a reduction, `_NO_FORMULA` for a plan without one; UserError if that has too many ranks to simulate."""
    try:
        return find_formula(reduction)
    except UserError:
        if ranks > PLANNED_RANKS or Spec.parse(reduction).name not in installed_names(TOPOLOGIES):
            raise
        return _NO_FORMULA


def shape_of(ranks: Sequence[int], world: World) -> Shape:
    """The shape of some ranks; if nodes have different numbers of them, as if each was on a node of its own."""
    counts = Counter(world.node_of[rank] for rank in ranks)
    even = len(set(counts.values())) == 1
    return Shape(len(counts), counts[world.node_of[ranks[0]]]) if even else Shape(len(ranks), 1)


def groups_on_a_node(groups: Iterable[Sequence[int]], world: World) -> int:
    """The largest number of these groups that use one node's link to other nodes at the same time.

    >>> groups_on_a_node([(0, 2), (1, 3)], World.even(nodes=2, ranks_per_node=2))
    2
    """
    nodes = [{world.node_of[rank] for rank in group} for group in groups]
    found = Counter(node for some in nodes if len(some) > 1 for node in some)
    return max(found.values(), default=1)


def first_of(drawn: Seconds) -> float:
    """The value without a draw."""
    return float(np.ravel(drawn)[0])


def with_spread(value: float, like: Seconds) -> Drawn:
    """A simulated value, with the relative spread of other draws."""
    return np.full(DRAWS + 1, value) * like / (first_of(like) or 1.0)


def total(parts: Mapping[str, Drawn]) -> Drawn:
    """Seconds of all parts together, in each draw."""
    return np.sum(list(parts.values()), axis=0)  # type: ignore[no-any-return]


def _steps_of(profile: Profile, model: str) -> list[MeasuredStep]:
    found = sorted((step for step in profile.steps if step.model == model), key=lambda step: step.batch_per_rank)
    if not found:
        known = sorted({step.model for step in profile.steps})
        raise UserError(
            f"the profile has no steps of {model} (it has {', '.join(known) or 'none'}): firetrain bench profile CONFIG --save "
            "FILE measures them"
        )
    return found


def _largest_of(ranks: int) -> float:
    """The expected maximum of `ranks` standard normal numbers (Blom 1958)."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0
