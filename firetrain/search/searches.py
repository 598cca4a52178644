"""Searches for a config on several numbers of ranks, from a profile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

from firetrain.cluster import World
from firetrain.config import Config
from firetrain.config.label import model_label
from firetrain.errors import UserError
from firetrain.limits import MOST_PLACED_RANKS
from firetrain.predict.costs import Costs, formula_of
from firetrain.predict.network import Shape
from firetrain.predict.question import WhatIf
from firetrain.records.profile import Profile
from firetrain.search.explain import deviations, layer_costs
from firetrain.search.model import MemoryBudget, SearchModel, Step
from firetrain.search.problem import Choice
from firetrain.search.search import ADDITIVE, Found, Known, search
from firetrain.search.timeline import Timeline, grid_timeline, pipeline_timeline
from firetrain.strategy.catalogue import find_strategy
from firetrain.strategy.check import refuse_several_readers, untrainable
from firetrain.strategy.file import SearchedSection, text
from firetrain.strategy.layer import Layer
from firetrain.strategy.placement import Placement
from firetrain.strategy.slice import Slice, working_slices
from firetrain.strategy.traffic import FLOAT_BYTES
from firetrain.words import counted

NAME = "searched"
# weights, gradients, and the optimiser's state
_COPIES = {"sgd": 3, "lars": 3, "lamb": 4}
# by about this share, errors of the predictions of two placements differ; each errs by more (results/search)
MARGIN = 0.05


class Recommended(NamedTuple):
    """A placement to train with, the time of its step, and the size of its buckets in MiB of gradients."""

    step_ns: int
    placement: Placement
    bucket_mib: float


@dataclass(frozen=True)
class Searched:
    """What was found for one world and a `step`, from a `profile` with the changes of `what_if`.

    `alone_ns`: the step of one rank alone. `alone_fits`: whether one rank has the memory for it. `margin`: by what share another
    placement must be faster than data-parallel training to be recommended.
    """

    model: SearchModel
    step: Step
    label: str
    profile: Profile
    found: Found
    alone_ns: int
    alone_fits: bool
    wire_dtype: str
    what_if: str
    margin: float

    @property
    def world(self) -> World:
        """The ranks and their nodes."""
        return self.model.world

    @cached_property
    def interval_ns(self) -> tuple[float, float]:
        """The 95 % interval of the step with the grids that were found."""
        return self.model.interval_ns(self.found.problem, self.found.choice)

    @property
    def is_pipeline(self) -> bool:
        """Whether a pipeline is faster than all grids."""
        return self.found.pipeline is not None and self.found.pipeline.step_ns < self.found.step_ns

    @property
    def step_ns(self) -> int:
        """The time of the fastest step: of the grids that were found, or of a pipeline."""
        return min(self.found.step_ns, self.found.pipeline.step_ns if self.found.pipeline else self.found.step_ns)

    @property
    def bucket_mib(self) -> float:
        """The size of buckets that was found, in MiB of gradients, as `reduction.bucket_mib` gives it."""
        return self._in_mib(self.found.problem.bucket_bytes)

    def _in_mib(self, bucket_bytes: int) -> float:
        """Bytes on the wire as MiB of gradients."""
        return bucket_bytes * FLOAT_BYTES / self.step.wire_bytes / 2**20

    def unmeasured(self) -> set[Slice]:
        """Slices of the placements that the search names, without those of losses, that the profile does not have."""
        wanted = {part for one in self.placements() for part in working_slices(one, self.step.images)}
        return wanted - set(self.model.measured)

    def fault(self) -> str | None:
        """Why the fastest placement cannot be trained; None if it can."""
        return next(untrainable(self.placement(), self.step.images), None)

    def placement(self) -> Placement:
        """The placement with the fastest step."""
        if self.is_pipeline:
            return find_strategy(str(self.found.pipeline and self.found.pipeline.name))(self.model.layers, self.world)
        return self.model.placement(self.found.problem, self.found.choice, NAME)

    @cached_property
    def recommended(self) -> Recommended | None:
        """The placement to train with; None if none can be trained.

        It is data-parallel training, the simplest, unless another one is faster by more than the `margin`: then the fastest of
        what was found and what it is compared with. Each has the buckets with which it is fastest.
        """
        problem, pipeline = self.found.problem, self.found.pipeline
        mine = Known(NAME, self.found.choice, self.found.step_ns, problem.bucket_bytes)
        every = [
            Recommended(
                one.step_ns,
                self.model.placement(problem, one.choice, NAME if one.name == ADDITIVE else one.name),
                self._in_mib(one.bucket_bytes),
            )
            for one in (*sorted(self.found.known, key=lambda known: known.name == ADDITIVE), mine)
            if problem.fits(one.choice)
        ]
        if pipeline:
            placement = find_strategy(pipeline.name)(self.model.layers, self.world)
            every.append(Recommended(pipeline.step_ns, placement, self.bucket_mib))
        good = [one for one in every if next(untrainable(one.placement, self.step.images), None) is None]
        fastest = min(good, key=lambda one: one.step_ns, default=None)
        simplest = next((one for one in good if one.placement.is_data_parallel), None)
        if fastest and simplest and simplest.step_ns <= (1 + self.margin) * fastest.step_ns:
            return simplest
        return fastest

    @property
    def recommended_ns(self) -> int:
        """The step of the recommended placement; of the fastest one if none can be trained."""
        return self.recommended.step_ns if self.recommended else self.step_ns

    def written(self) -> Recommended:
        """As `recommended`; UserError with the reason if there is none."""
        if self.recommended is None:
            raise UserError(f"{self.world}: no placement that was found can be trained: {self.fault()}")
        return self.recommended

    def placements(self) -> list[Placement]:
        """The grids that were found, those they are compared with, and the fastest pipeline."""
        choices = {self.found.choice, *(known.choice for known in self.found.known)}
        grids = [self.model.placement(self.found.problem, choice, NAME) for choice in choices]
        pipeline = self.found.pipeline
        return [*grids, find_strategy(pipeline.name)(self.model.layers, self.world)] if pipeline else grids

    def choice(self, strategy: str) -> Choice:
        """The grids of a strategy or of a placement file; UserError if they are not in the space that is searched."""
        placement = find_strategy(strategy)(self.model.layers, self.world)
        choice = self.model.choice(self.found.problem, placement)
        if choice is None or placement.micro_batches > 1:
            how = (
                "cuts batches"
                if choice is not None
                else "does not divide every layer by images and outputs among all ranks"
            )
            raise UserError(f"{strategy} {how}: its time is predicted by firetrain predict --strategies")
        return choice

    def timeline(self) -> Timeline:
        """The fastest step: of all ranks, or of each rank of a pipeline's replica."""
        if self.is_pipeline and self.found.pipeline:
            return pipeline_timeline(self.found.pipeline.replica)
        return grid_timeline(self.found.problem, self.found.choice)

    @property
    def data_parallel(self) -> Choice:
        """The grids that divide every layer by images."""
        return (0,) * len(self.found.choice)

    def file(self) -> str:
        """The recommended placement as a placement file, with what was searched; errors as `written`."""
        step_ns, placement, bucket_mib = self.written()
        searched = SearchedSection(
            model=self.label, images=self.step.images, world=self.world.node_of, reduction=self.step.reduction,
            wire_dtype=self.wire_dtype, bucket_mib=bucket_mib,
            step_ms=step_ns / 1e6, bound_ms=min(self.found.bound_ns, self.step_ns) / 1e6,
            profile=sha256(self.profile.text.encode()).hexdigest(), what_if=self.what_if,
        )  # fmt: skip
        return text(placement, searched)

    def as_json(self) -> dict[str, Any]:
        """What was found, with all times in seconds, as JSON-ready facts."""
        found = self.found
        layers = [{**asdict(one), "grid": one.grid._asdict()} for one in layer_costs(found.problem, found.choice)]
        from_it = deviations(found.problem, found.choice, self.data_parallel)
        deviating = [{**asdict(one), "grid": one.grid._asdict(), "base": one.base._asdict()} for one in from_it]
        return {
            "ranks": self.world.size, "nodes": len(self.world.nodes), "what_if": self.what_if, "step_s": found.step_ns / 1e9,
            "interval_s": [end_ns / 1e9 for end_ns in self.interval_ns],
            "bound_s": found.bound_ns / 1e9, "proven": found.is_proven, "labels": found.labels, "seconds": found.seconds,
            "one_rank_s": self.alone_ns / 1e9, "one_rank_fits": self.alone_fits, "bucket_bytes": round(self.bucket_mib * 2**20),
            "known_s": {one.name: one.step_ns / 1e9 for one in found.known},
            "too_large": [one.name for one in found.known if not found.problem.fits(one.choice)],
            "layers": layers, "deviations": deviating,
            "unexplained_s": found.problem.unexplained_ns / 1e9,
            "pipeline": found.pipeline and {"name": found.pipeline.name, "step_s": found.pipeline.step_ns / 1e9},
            "fastest_s": self.step_ns / 1e9, "cannot_be_trained": self.fault(),
            "recommended": self.recommended and self.recommended.placement.strategy,
            "recommended_s": self.recommended and self.recommended.step_ns / 1e9, "margin": self.margin,
            "recommended_bucket_bytes": self.recommended and round(self.recommended.bucket_mib * 2**20),
            "unmeasured_slices": len(self.unmeasured()) if self.model.measured else None,
        }  # fmt: skip


def searches(
    config: Config,
    profile: Profile,
    layers_of: Callable[[Config], Sequence[Layer]],
    worlds: Sequence[World],
    limit_bytes: int | None = None,
    what_if: WhatIf | None = None,
    margin: float = MARGIN,
) -> list[Searched]:
    """The fastest placement for each world, from a profile with the changes of `what_if`; `margin` as in Searched.

    UserError if the profile has no steps of the model, if there are more ranks than images, if the ranks of data-parallel
    training would compute theirs in several passes, or if nothing fits into `limit_bytes` for each rank. `layers_of(config)`:
    layers of the model; called after all other checks.
    """
    what_if = what_if or WhatIf()
    what_if.refuse_oversubscribed_exchanges()
    label = model_label(config.model, config.data)
    costs = Costs(profile, label, what_if)
    steps = [_step(config, world.size, costs) for world in worlds]
    memory, layers = MemoryBudget(_COPIES[config.optimizer.name], limit_bytes), layers_of(config)
    refuse_several_readers(layers)
    found = []
    for world, step in zip(worlds, steps, strict=True):
        model = SearchModel(layers, world, costs, memory)
        alone_s = float(costs.passes_s(step.images, step.most_images)[0][0] + costs.update[0])
        buckets = (step.bucket_bytes,) if config.reduction.bucket_mib else ()
        alone = SearchModel(layers, World.even(1, 1), costs, memory).problem(_in_one_pass(step))
        found.append(
            Searched(
                model, step, label, profile, search(model, step, buckets), round(1e9 * alone_s),
                alone.fits((0,) * len(alone.allowed)), config.reduction.wire_dtype, str(what_if), margin,
            )
        )  # fmt: skip
    return found


def _in_one_pass(step: Step) -> Step:
    """The step with as many images as one rank alone computes in a pass."""
    return replace(step, images=min(step.images, step.most_images or step.images), most_images=None)


def worlds_of(counts: Sequence[int], per_node: int) -> list[World]:
    """The worlds of these numbers of ranks; UserError if they cannot be searched, or do not fill their nodes."""
    for count in counts:
        _refuse_count(count)
    return [Shape.of(count, per_node).world for count in counts]


def refuse_unsearchable(config: Config, profile: Profile, worlds: Sequence[World]) -> None:
    """UserError for what `searches` would refuse before it needs the layers."""
    costs = Costs(profile, model_label(config.model, config.data), WhatIf())
    for world in worlds:
        _step(config, world.size, costs)


def _step(config: Config, count: int, costs: Costs) -> Step:
    batch, reduction = config.batch, config.reduction
    _refuse_count(count)
    images = batch.per_rank * count if batch.per_rank else int(batch.global_size or 0)
    if images < count:
        raise UserError(f"{counted(count, 'rank')}: more ranks than images in the batch ({images})")
    most = batch.per_rank_max
    if most is not None and -(-images // count) > most:
        raise UserError(
            f"{counted(count, 'rank')}, each with {-(-images // count)} images, would compute them in several passes, which "
            f"searches do not support: set batch.per_rank_max to null (is {most})"
        )
    formula_of(str(reduction.spec), count)
    bucket_bytes = reduction.bucket_bytes or costs.undrawn.link().bucket_bytes(count)
    return Step(images, str(reduction.spec), bucket_bytes, reduction.wire_bytes, most)


def _refuse_count(count: int) -> None:
    if not 2 <= count <= MOST_PLACED_RANKS:
        raise UserError(f"{counted(count, 'rank')}: placements are searched for 2 to {MOST_PLACED_RANKS} ranks")
