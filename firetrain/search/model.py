"""The search problem of a model on a machine: what every layer costs with every grid, from a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from firetrain.cluster import World
from firetrain.errors import UserError
from firetrain.predict.costs import DRAWS, Costs, first_of, groups_on_a_node, shape_of
from firetrain.search.draws import step_draws_ns
from firetrain.search.exchanges import Exchanges, firsts
from firetrain.search.grid import Grid, grids_of
from firetrain.search.pipelines import Pipeline, Pipelines
from firetrain.search.problem import Choice, Edge, Int64Array, Problem
from firetrain.search.sums import Sums
from firetrain.strategy.layer import Layer
from firetrain.strategy.placement import Placement
from firetrain.strategy.slice import Slice
from firetrain.strategy.split import Split
from firetrain.strategy.traffic import FLOAT_BYTES

_LEAST_SUM_BYTES = 1 << 12


@dataclass(frozen=True)
class MemoryBudget:
    """What a rank keeps.

    `copies`: number of copies of each weight, with its gradient and the optimiser's state. `limit_bytes`: memory of a rank.
    """

    copies: int = 3
    limit_bytes: int | None = None


@dataclass(frozen=True)
class Step:
    """The training step that is searched.

    `images`: number of images in a global batch. `reduction`: its name; it sums gradients in buckets of `bucket_bytes`, with
    `wire_bytes` for each number. `most_images`: in one pass of a rank that reads images.
    """

    images: int
    reduction: str
    bucket_bytes: int
    wire_bytes: int = FLOAT_BYTES
    most_images: int | None = None


class SearchModel:
    """The layers of a model on a world, and their costs; makes the problem that is searched, and placements of what was found."""

    def __init__(self, layers: Sequence[Layer], world: World, costs: Costs, memory: MemoryBudget | None = None) -> None:
        self.layers, self.world = tuple(layers), world
        self._costs, self._memory = costs, memory or MemoryBudget()
        self._work = costs.work(layers)
        later = first_of(costs.slowest_s(np.ones(DRAWS + 1), world.size))  # than most ranks, as a share of their time
        slower = 0.0 if self._work.is_of_slowest else later
        self._of_slowest = self._work.slower(1 + slower)
        self._stolen = round(1000 * costs.stolen(len(world.nodes)))
        self._update_ns = 1e9 * costs.update_s()
        self._unexplained_ns = round(1e9 * first_of(costs.unexplained)) if world.size > 1 else 0
        self.grids = tuple(grids_of(world.size))
        self.splits = [grid.split(world) for grid in self.grids]

    @property
    def measured(self) -> Mapping[Slice, tuple[float, float]]:
        """The seconds of the slices that were measured."""
        return self._costs.measured

    def problem(self, step: Step) -> Problem:
        """The problem of a training step."""
        if step.images < 1:
            raise UserError(f"a batch has at least one image (batch: {step.images})")
        variables = _variables(self.layers)
        shape = len(self.layers), len(self.grids)
        tables = {name: np.zeros(shape, np.int64) for name in ("forward", "backward", "update", "gradients", "memory")}
        for number, layer in enumerate(self.layers):
            for column, split in enumerate(self.splits):
                if not split.fault(layer):
                    self._fill(tables, number, column, layer, split, step)
        tables["update"][-1] += self._unexplained_ns  # which every placement has, like an update
        return Problem(
            tuple(layer.name for layer in self.layers), self.grids, variables, self._allowed(variables, step), tables["forward"],
            tables["backward"], tables["update"], tables["gradients"], tables["memory"], tuple(self._edges(step.images)),
            self._sums(step), step.bucket_bytes * step.wire_bytes // FLOAT_BYTES, self._memory.limit_bytes, self._stolen,
            self._unexplained_ns,
        )  # fmt: skip

    def placement(self, problem: Problem, choice: Choice, name: str) -> Placement:
        """The placement that divides each layer by its grid in a choice."""
        splits = {layer: grid.split(self.world) for layer, grid in problem.grids_in(choice).items()}
        return Placement(name, self.world.size, self.layers, splits)

    def choice(self, problem: Problem, placement: Placement) -> Choice | None:
        """The choice that makes a placement; None if it is not in the space that is searched."""
        numbers = {split: number for number, split in enumerate(self.splits)}
        try:
            return problem.choice_of([numbers[placement.splits[name]] for name in problem.names])
        except (KeyError, ValueError):
            return None

    def interval_ns(self, problem: Problem, choice: Choice) -> tuple[float, float]:
        """The 95 % interval of a step over the profile's draws of compute and links, in nanoseconds."""
        costs = self._costs
        compute = costs.compute_s(costs.last.batch_per_rank)
        link = costs.network.between if len(self.world.nodes) > 1 else costs.network.inside
        drawn_s = np.broadcast_to(link.s_per_byte, DRAWS + 1)
        unexplained_ns = 1e9 * costs.unexplained if problem.unexplained_ns else np.zeros(DRAWS + 1)
        drawn = step_draws_ns(problem, choice, compute / compute[0], drawn_s / drawn_s[0], unexplained_ns)
        low, high = np.quantile(drawn[1:], (0.025, 0.975))
        return float(low), float(high)

    def pipelines(self, problem: Problem, step: Step) -> list[Pipeline]:
        """Pipelines with the buckets of a problem."""
        made = Pipelines(self.layers, self.world, self._costs, self._of_slowest, self._update_ns)
        return list(made.all(step.images, problem.sums, problem.bucket_bytes, step.wire_bytes, step.most_images))

    def _fill(
        self, tables: dict[str, Int64Array], number: int, column: int, layer: Layer, split: Split, step: Step
    ) -> None:
        """What a layer costs with one grid. The rank with the largest slice counts."""
        slice_ = largest_slice(layer, split, step.images)
        held, (forward_s, backward_s) = slice_.parameters(layer), self._of_slowest.seconds(layer, slice_)
        tables["forward"][number, column] = round(1e9 * forward_s)
        tables["backward"][number, column] = round(1e9 * backward_s)
        parameters = sum(one.parameters for one in self.layers) or 1
        tables["update"][number, column] = round(self._update_ns * held / parameters)
        tables["gradients"][number, column] = held * step.wire_bytes if split.images > 1 else 0
        elements = layer.made_elements + layer.spread * layer.output_elements
        read = next((one.output_elements for one in self.layers if one.name in layer.sources), 1)
        # a layer that is divided by outputs keeps the inputs of all ranks; another mostly reads what its sources keep
        gathered = slice_.inputs * read if split.outputs > 1 and layer.kind != "channels" else 0
        activations = slice_.images * (slice_.outputs * elements + gathered) * FLOAT_BYTES
        tables["memory"][number, column] = held * FLOAT_BYTES * self._memory.copies + activations

    def _allowed(self, variables: Sequence[int], step: Step) -> tuple[tuple[int, ...], ...]:
        """The grids that suit all layers of each variable, and with which no rank reads too many images at once."""
        found = [set(range(len(self.grids))) for _ in range(max(variables) + 1)]
        for layer, variable in zip(self.layers, variables, strict=True):
            found[variable] -= {number for number, split in enumerate(self.splits) if split.fault(layer)}
            if step.most_images is not None and not layer.sources:
                found[variable] = {
                    number
                    for number in found[variable]
                    if -(-step.images // self.grids[number].images) <= step.most_images
                }
        return tuple(tuple(sorted(some)) for some in found)

    def _edges(self, images: int) -> list[Edge]:
        """What is exchanged between layers.

        A tensor that several layers need in the same way travels once, if they have the same sources, and thus one variable.
        Where others need it in the same way by chance, it is counted for each, although it travels once.
        """
        by_name = {layer.name: (number, layer) for number, layer in enumerate(self.layers)}
        wait_s = self._costs.exchange_wait_s(self.world.size)
        exchanges = Exchanges(self.world, images, self._costs.undrawn, wait_s)
        found: list[Edge] = []
        seen: set[tuple[str, tuple[str, ...], Grid]] = set()
        for number, layer in enumerate(self.layers):
            sources = [by_name[name] for name in layer.sources]
            first = firsts(layer, [source for _, source in sources]) if sources else []
            for place, (position, source) in enumerate(sources):
                ns = np.zeros((len(self.grids),) * 2, np.int64)
                for column, need in enumerate(self.grids):
                    key = (source.name, layer.sources, need)
                    if layer.kind != "channels" or need.outputs == 1:
                        if key in seen:
                            continue
                        seen.add(key)
                    for row, have in enumerate(self.grids):
                        ns[row, column] = exchanges.ns(source, have, layer, need, first[place])
                if ns.any():
                    found.append(Edge(position, number, ns))
        return found

    def _sums(self, step: Step) -> Sums:
        """The time of sums for each number of sharers, at sizes that double."""
        most = sum(layer.parameters for layer in self.layers) * step.wire_bytes + step.bucket_bytes
        sizes = [0, _LEAST_SUM_BYTES]
        while sizes[-1] < most:
            sizes.append(2 * sizes[-1])
        ns = {}
        for grid, split in zip(self.grids, self.splits, strict=True):
            if grid.images == 1:
                continue
            groups = list(dict.fromkeys(split.sharers(rank) for rank in split.ranks))
            shapes, together = {shape_of(group, self.world) for group in groups}, groups_on_a_node(groups, self.world)
            times = [  # of the slowest group, if nodes have different numbers of ranks
                max(first_of(self._costs.allreduce_s(shape, step.reduction, size, groups=together)) for shape in shapes)
                for size in sizes[1:]
            ]
            rising = np.maximum.accumulate([0.0, *times])
            ns[grid.images] = [int(round(1e9 * one)) for one in rising]
            ns[grid.images][0] = ns[grid.images][1]
        return Sums(sizes, ns)


def largest_slice(layer: Layer, split: Split, images: int) -> Slice:
    """The largest slice of a rank: numbers that cannot be divided evenly are rounded up."""
    inputs = layer.inputs if layer.kind != "channels" else -(-layer.inputs // split.outputs)
    return Slice(layer.name, -(-images // split.images), -(-layer.outputs // split.outputs), inputs)


def _variables(layers: Sequence[Layer]) -> tuple[int, ...]:
    """The number of each layer's variable: layers that read the same share one."""
    known: dict[tuple[str, ...], int] = {}
    return tuple(known.setdefault(layer.sources or ("", layer.name), len(known)) for layer in layers)
