"""The ranks and the nodes they run on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    """`node_of[rank]` is the node that a rank runs on; nodes are numbered 0, 1, ... in order of their first rank."""

    node_of: tuple[int, ...]

    def __post_init__(self) -> None:
        seen = list(dict.fromkeys(self.node_of))
        if not self.node_of or seen != list(range(len(seen))):
            raise ValueError(f"nodes must be numbered from 0 in order of their first rank (node_of: {self.node_of})")

    @classmethod
    def even(cls, nodes: int, ranks_per_node: int) -> World:
        """The same number of ranks on every node, node after node."""
        return cls(tuple(node for node in range(nodes) for _ in range(ranks_per_node)))

    @classmethod
    def from_labels(cls, labels: Sequence[object]) -> World:
        """From anything that is equal on one node and differs between nodes, one label per rank."""
        number = {label: index for index, label in enumerate(dict.fromkeys(labels))}
        return cls(tuple(number[label] for label in labels))

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.node_of)

    @property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each node."""
        groups: list[list[int]] = [[] for _ in range(max(self.node_of) + 1)]
        for rank, node in enumerate(self.node_of):
            groups[node].append(rank)
        return tuple(map(tuple, groups))

    @property
    def by_node(self) -> tuple[int, ...]:
        """All ranks, node after node: neighbours in this order share a node wherever they can."""
        return tuple(rank for ranks in self.nodes for rank in ranks)

    def __str__(self) -> str:
        counts = sorted({len(ranks) for ranks in self.nodes})
        ranks = "1 rank" if self.size == 1 else f"{self.size} ranks"
        if len(self.nodes) == 1:
            return f"{ranks} on 1 node"
        each = f"{counts[0]} each" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} each"
        return f"{ranks} on {len(self.nodes)} nodes, {each}"
