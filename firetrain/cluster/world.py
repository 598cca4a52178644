"""The ranks of a run, and the nodes that they run on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from firetrain.errors import UserError
from firetrain.limits import MOST_RANKS
from firetrain.words import counted


@dataclass(frozen=True)
class World:
    """The ranks and their nodes. `node_of[rank]` is a rank's node; nodes are numbered 0, 1, ... by their first rank.

    >>> world = World((0, 0, 1))
    >>> world.size, world.nodes, str(world)
    (3, ((0, 1), (2,)), '3 ranks on 2 nodes, 1 to 2 each')
    >>> World.even(nodes=2, ranks_per_node=2).node_of
    (0, 0, 1, 1)
    """

    node_of: tuple[int, ...]

    def __post_init__(self) -> None:
        seen = list(dict.fromkeys(self.node_of))
        if not self.node_of or seen != list(range(len(seen))):
            raise ValueError(f"nodes must be numbered from 0 in order of their first rank (node_of: {self.node_of})")

    @classmethod
    def even(cls, nodes: int, ranks_per_node: int) -> World:
        """A world with the same number of ranks on every node, numbered node by node; UserError if there are too many."""
        if nodes * ranks_per_node > MOST_RANKS:
            raise UserError(
                f"{nodes} nodes with {ranks_per_node} ranks each: at most {MOST_RANKS:,} ranks are supported"
            )
        return _even(nodes, ranks_per_node)

    @classmethod
    def from_labels(cls, labels: Sequence[object]) -> World:
        """The world of ranks with these labels, one per rank: equal for ranks of a node, different between nodes."""
        number = {label: index for index, label in enumerate(dict.fromkeys(labels))}
        return cls(tuple(number[label] for label in labels))

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.node_of)

    @property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each node, by node."""
        groups: list[list[int]] = [[] for _ in range(max(self.node_of) + 1)]
        for rank, node in enumerate(self.node_of):
            groups[node].append(rank)
        return tuple(map(tuple, groups))

    @property
    def by_node(self) -> tuple[int, ...]:
        """All ranks ordered by node, so that neighbours share a node wherever possible."""
        return tuple(rank for ranks in self.nodes for rank in ranks)

    def __str__(self) -> str:
        counts = sorted({len(ranks) for ranks in self.nodes})
        ranks = counted(self.size, "rank")
        if len(self.nodes) == 1:
            return f"{ranks} on 1 node"
        each = f"{counts[0]} each" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} each"
        return f"{ranks} on {len(self.nodes)} nodes, {each}"


@lru_cache(maxsize=16)
def _even(nodes: int, ranks_per_node: int) -> World:
    """Kept, because a comparison makes the same few worlds for each of its trials."""
    return World(tuple(node for node in range(nodes) for _ in range(ranks_per_node)))
