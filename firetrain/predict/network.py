"""What lies between ranks, as prices: seconds per message, per byte sent, per byte added."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firetrain.cluster import Link, World
from firetrain.errors import UserError
from firetrain.records.profile import MeasuredLink, Profile, Quantity

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

    def slower(self, factor: Seconds) -> Wire:
        """With so many times the seconds per byte."""
        return Wire(self.latency_s, self.s_per_byte * factor)


@dataclass(frozen=True)
class Network:
    """Links inside a node and between nodes, and what adding costs.

    `between` is a node's link while all nodes use theirs; the ranks of a node share it. `alone` is the same with one pair at
    a time: what a tree's root or a server sees. `incast`: by how much the link of one receiver slows down while many send to
    it, each as fast as it can; `congestion`: the same while all send to all. Both at 32 senders; they grow with the logarithm
    of the number. Uplink bandwidth of a leaf switch, which joins `leaf_nodes` nodes = sum of its nodes' bandwidths /
    `oversubscription`. `gap_s`: what a message keeps its sender busy before the next one may leave, and its receiver before the
    next one is taken in (o and g of LogGP, Alexandrov et al. 1995, whichever is larger); a part of the latency, not beside it.
    """

    inside: Wire
    between: Wire
    alone: Wire
    s_per_added_byte: Seconds = 0.0
    incast: Seconds = 1.0
    congestion: Seconds = 1.0
    oversubscription: float = 1.0
    leaf_nodes: int = 16
    gap_s: Seconds = 0.0
    gap_is_assumed: bool = False

    @classmethod
    def measured(cls, profile: Profile, draw: Callable[[Quantity], Seconds] = lambda one: one.value) -> Network:
        """What a profile has of it, of links of several transports those that were measured last; UserError if it has none.

        `draw` makes one number, or many, of a measured one. Where the gap between messages was not measured it is the
        most that it can be.
        """
        if not profile.links:
            raise UserError("the profile has no links: firetrain bench link measures them")
        used = profile.links[-1].transport
        known = {(link.level, link.pairs): link for link in profile.links if link.transport == used}
        near = [known.get(("inside a node", pairs)) for pairs in ("all", "one")]
        far = [known.get(("between nodes", pairs)) for pairs in ("all", "one")]
        inside, between = near[0] or near[1] or far[0] or far[1], far[0] or far[1] or near[0] or near[1]
        alone = far[1] or far[0] or near[1] or near[0]
        links = [_wire(link, draw) for link in (inside, between, alone) if link]
        added, one = profile.s_per_added_byte or Quantity(value=0.0), Quantity(value=1.0)
        crowds = [draw(profile.incast or one), draw(profile.congestion or one)]
        found = cls(links[0], links[1], links[2], draw(added), crowds[0], crowds[1])
        gap_s = draw(profile.message_gap) if profile.message_gap else found.most_gap_s
        return replace(found, gap_s=gap_s, gap_is_assumed=profile.message_gap is None)

    @property
    def most_gap_s(self) -> Seconds:
        """Half of the smallest latency: a message's latency holds the overhead of both its ends."""
        return np.minimum(self.inside.latency_s, np.minimum(self.between.latency_s, self.alone.latency_s)) / 2

    def what_if(
        self, bandwidth: float = 1.0, latency: float = 1.0, oversubscription: float = 1.0, leaf_nodes: int = 16
    ) -> Network:
        """With links between nodes `bandwidth` and `latency` times what they are, and leaf switches with thinner links up."""

        def changed(wire: Wire) -> Wire:
            return Wire(wire.latency_s * latency, wire.s_per_byte / bandwidth)

        faster = replace(self, between=changed(self.between), alone=changed(self.alone))
        gap_s = faster.most_gap_s if self.gap_is_assumed else self.gap_s
        return replace(faster, oversubscription=oversubscription, leaf_nodes=leaf_nodes, gap_s=gap_s)

    def undrawn(self) -> Network:
        """Of draws the first: what was measured."""

        def first(value: Any) -> Any:
            if isinstance(value, Wire):
                return Wire(first(value.latency_s), first(value.s_per_byte))
            return float(value[0]) if isinstance(value, np.ndarray) else value

        return Network(**{one.name: first(getattr(self, one.name)) for one in fields(self)})

    def hop(self, wire: Wire, size_bytes: float) -> Seconds:
        """How long a message takes that waits for one before it: no rank deals with more than one in a gap."""
        return np.maximum(wire(size_bytes), self.gap_s)

    def link(self) -> Link:
        """As the executor sees it (`Profile.slowest_link`); for one number each."""
        latency_s, together_s = float(self.alone.latency_s), float(self.between.latency_s)
        return Link(latency_s, 1 / float(self.between.s_per_byte), together_s)

    def crowd(self, factor: Seconds, senders: int) -> Seconds:
        """`incast` or `congestion` at so many senders."""
        return 1 + (factor - 1) * math.log2(max(1, senders)) / 5

    def uplink(self, nodes: int, links: float) -> float:
        """By how much messages slow down that leave their leaf switch, if as much leaves each as `links` nodes can send."""
        return max(1.0, links * self.oversubscription / self.leaf_nodes) if nodes > self.leaf_nodes else 1.0


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
    def is_regular(self) -> bool:
        """One level of links and a power of two of ranks."""
        return 1 in (self.nodes, self.per_node) and self.ranks & (self.ranks - 1) == 0

    @property
    def world(self) -> World:
        """Written out."""
        return World.even(self.nodes, self.per_node)


def _wire(link: MeasuredLink, draw: Callable[[Quantity], Seconds]) -> Wire:
    values = (link.latency_s, link.latency_spread), (1 / link.bytes_per_s, link.spread)
    drawn = [
        draw(Quantity(value=value, low=value * (1 - spread), high=value * (1 + spread))) for value, spread in values
    ]
    return Wire(*drawn)
