"""What is searched: a grid for every layer, and what each choice costs, in whole nanoseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firetrain.search.grid import Grid
from firetrain.search.sums import Sums

Int64Array = NDArray[np.int64]
# one grid of each variable, as its number
Choice = tuple[int, ...]


class Edge(NamedTuple):
    """The output of layer `source` is an input of `layer`. `ns`: time to bring it there, int64 [grids, grids] of both."""

    source: int
    layer: int
    ns: Int64Array


@dataclass(frozen=True, eq=False)
class Problem:
    """The layers of a model in the order in which they are computed, and what they cost with each grid.

    All tables are int64 [layers, grids].

    - `names`: names of the layers.
    - `grids`: what a layer can be divided into.
    - `variables`: the number of each layer's variable; layers with the same input have one variable, and thus the same grid.
    - `allowed`: for each variable, the numbers of its grids.
    - `forward_ns`, `backward_ns`, `update_ns`: time of a rank, in nanoseconds.
    - `gradient_bytes`: bytes of gradients that are summed, on the wire; 0 if no other rank has the same weights.
    - `memory_bytes`: memory of a rank for weights, gradients, the optimiser's state and activations.
    - `edges`: what is exchanged between layers; the gradient of it travels back and takes as long.
    - `sums`: the time of sums of gradients.
    - `bucket_bytes`: size of a bucket, unless one gradient is larger. `memory_limit_bytes`: the memory that a rank has.
    - `stolen_per_mille`: share of the time of a sum that it takes from compute at the same time, in thousandths.
    - `unexplained_ns`: what `update_ns` of the last layer has with every grid because the profile does not explain it.
    """

    names: tuple[str, ...]
    grids: tuple[Grid, ...]
    variables: tuple[int, ...]
    allowed: tuple[tuple[int, ...], ...]
    forward_ns: Int64Array
    backward_ns: Int64Array
    update_ns: Int64Array
    gradient_bytes: Int64Array
    memory_bytes: Int64Array
    edges: tuple[Edge, ...]
    sums: Sums
    bucket_bytes: int
    memory_limit_bytes: int | None = None
    stolen_per_mille: int = 0
    unexplained_ns: int = 0

    def most_bytes(self, later: int) -> int:
        """The size of a bucket: if none comes before it (`later` is 0), a quarter, so that communication starts early."""
        return self.bucket_bytes if later else self.bucket_bytes // 4

    def stolen_ns(self, sum_ns: int) -> int:
        """What a sum takes from compute; rounded up, so that no bound can be above it."""
        return -(-sum_ns * self.stolen_per_mille // 1000)

    @cached_property
    def edges_from(self) -> list[list[Edge]]:
        """The edges by their source."""
        found: list[list[Edge]] = [[] for _ in self.names]
        for edge in self.edges:
            found[edge.source].append(edge)
        return found

    @cached_property
    def layers_of(self) -> list[list[int]]:
        """The layers of each variable."""
        found: list[list[int]] = [[] for _ in self.allowed]
        for layer, variable in enumerate(self.variables):
            found[variable].append(layer)
        return found

    def memory(self, choice: Choice) -> int:
        """The bytes that a rank keeps with these grids."""
        return int(sum(self.memory_bytes[layer, choice[self.variables[layer]]] for layer in range(len(self.names))))

    def fits(self, choice: Choice) -> bool:
        """Whether a rank has the memory for these grids."""
        return self.memory_limit_bytes is None or self.memory(choice) <= self.memory_limit_bytes

    def grids_in(self, choice: Choice) -> dict[str, Grid]:
        """The grid of each layer by name."""
        return {name: self.grids[choice[variable]] for name, variable in zip(self.names, self.variables, strict=True)}

    def choice_of(self, grids: Sequence[int]) -> Choice:
        """A choice from one grid for each layer; ValueError if layers of one variable differ or a grid is not allowed."""
        found: dict[int, int] = {}
        for name, variable, grid in zip(self.names, self.variables, grids, strict=True):
            if found.setdefault(variable, grid) != grid or grid not in self.allowed[variable]:
                raise ValueError(f"{name} cannot be divided {self.grids[grid]}")
        return tuple(found[variable] for variable in range(len(self.allowed)))
