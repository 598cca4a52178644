"""What lies between ranks, as prices: seconds per message, per byte sent, per byte added."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from firetrain.cluster import World
from firetrain.errors import UserError

# one number, or one per draw
Seconds = float | NDArray[np.float64]


@dataclass(frozen=True)
class Wire:
    """A message of n bytes arrives latency_s + n s_per_byte after it left; only the second part keeps the link busy."""

    latency_s: Seconds
    s_per_byte: Seconds

    def __call__(self, size_bytes: float) -> Seconds:
        """How long a message takes."""
        return self.latency_s + size_bytes * self.s_per_byte


@dataclass(frozen=True)
class Network:
    """Links inside a node and between nodes, and what adding costs.

    `between` is a node's link while all nodes use theirs; the ranks of a node share it. `alone` is the same with one pair at
    a time: what a tree's root or a server sees. `incast`: by how much the link of one receiver slows down while many send to
    it, at 32 senders; it grows with the logarithm of their number.
    """

    inside: Wire
    between: Wire
    alone: Wire
    s_per_added_byte: Seconds = 0.0
    incast: Seconds = 1.0

    def what_if(self, bandwidth: float = 1.0, latency: float = 1.0, oversubscription: float = 1.0) -> Network:
        """With links between nodes `bandwidth` and `latency` times what they are, and a core `oversubscription` times too thin:
        that is felt while all nodes talk at once."""

        def changed(wire: Wire, thinner: float) -> Wire:
            return Wire(wire.latency_s * latency, wire.s_per_byte / bandwidth * thinner)

        return replace(self, between=changed(self.between, oversubscription), alone=changed(self.alone, 1.0))


@dataclass(frozen=True)
class Shape:
    """`nodes` nodes with `per_node` ranks each: a World too large to be written out."""

    nodes: int
    per_node: int

    @classmethod
    def of(cls, ranks: int, per_node: int) -> Shape:
        """UserError if the ranks do not fill their nodes."""
        if ranks <= per_node:
            return cls(1, ranks)
        if ranks % per_node:
            raise UserError(
                f"{ranks} ranks do not fill nodes of {per_node}: take a multiple, or another --ranks-per-node"
            )
        return cls(ranks // per_node, per_node)

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.nodes * self.per_node

    @property
    def world(self) -> World:
        """Written out."""
        return World.even(self.nodes, self.per_node)
