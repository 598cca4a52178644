"""The cost of communication: seconds per message, per byte sent and per byte added."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firetrain.cluster import Link, World
from firetrain.cluster.link import largest_bytes
from firetrain.errors import UserError
from firetrain.records.profile import MeasuredLink, Profile, Quantity

# one number, or one number per draw
Seconds = float | NDArray[np.float64]


@dataclass(frozen=True)
class LinkCost:
    """A message of n bytes arrives latency_s + n s_per_byte after its start; only the second term occupies the link.

    >>> gigabit = LinkCost(latency_s=50e-6, s_per_byte=1 / 1.2e8)
    >>> f"{gigabit(12_000_000):.5f} s"
    '0.10005 s'
    """

    latency_s: Seconds
    s_per_byte: Seconds

    def __call__(self, size_bytes: float) -> Seconds:
        """Seconds of a message of `size_bytes`."""
        return self.latency_s + size_bytes * self.s_per_byte

    def slower(self, factor: Seconds) -> LinkCost:
        """The cost with `factor` times the seconds per byte."""
        return LinkCost(self.latency_s, self.s_per_byte * factor)


@dataclass(frozen=True)
class Network:
    """The cost of links inside nodes and between nodes, and of additions.

    - `inside`: a rank's link inside its node.
    - `between`: a node's link, shared by its ranks, while all nodes use theirs.
    - `alone`: the same link with one pair at a time, as at the root of a tree or at a server.
    - `incast`: slowdown of a receiver's link while many nodes send to it as fast as they can.
    - `congestion`: slowdown of a receiver's link while all nodes send to all. Both are given for 32 senders, and grow with the
      logarithm of their number.
    - `oversubscription`: sum of the bandwidths of a leaf switch's nodes / bandwidth of its uplink.
    - `leaf_nodes`: nodes of a leaf switch.
    - `gap_s`: per-message overhead, the shortest time between two sends, or two receives, of a rank (the larger one of o and g
      of LogGP, Alexandrov et al. 1995). It is a part of the latency.

    >>> gigabit = LinkCost(latency_s=50e-6, s_per_byte=1 / 1.2e8)
    >>> Network(inside=gigabit, between=gigabit.slower(2), alone=gigabit).between(12_000_000)
    0.20005
    """

    inside: LinkCost
    between: LinkCost
    alone: LinkCost
    s_per_added_byte: Seconds = 0.0
    incast: Seconds = 1.0
    congestion: Seconds = 1.0
    oversubscription: float = 1.0
    leaf_nodes: int = 16
    gap_s: Seconds = 0.0
    gap_is_assumed: bool = False
    largest_bytes: int = largest_bytes("gloo")

    @classmethod
    def measured(cls, profile: Profile, draw: Callable[[Quantity], Seconds] = lambda one: one.value) -> Network:
        """The network of a profile; if it has links of several transports, the last measured. UserError without links.

        `draw` turns a measured quantity into one number, or an array. If the gap was not measured, its upper bound is used.
        """
        if not profile.links:
            raise UserError("the profile has no links: measure them with firetrain bench link")
        used = profile.links[-1].transport
        known = {(link.level, link.pairs): link for link in profile.links if link.transport == used}
        near = [known.get(("inside a node", pairs)) for pairs in ("all", "one")]
        far = [known.get(("between nodes", pairs)) for pairs in ("all", "one")]
        inside, between = near[0] or near[1] or far[0] or far[1], far[0] or far[1] or near[0] or near[1]
        alone = far[1] or far[0] or near[1] or near[0]
        links = [_link_cost(link, draw) for link in (inside, between, alone) if link]
        added, one = profile.s_per_added_byte or Quantity(value=0.0), Quantity(value=1.0)
        crowds = [draw(profile.incast or one), draw(profile.congestion or one)]
        found = cls(links[0], links[1], links[2], draw(added), crowds[0], crowds[1])
        gap_s = draw(profile.message_gap) if profile.message_gap else found.most_gap_s
        return replace(
            found, gap_s=gap_s, gap_is_assumed=profile.message_gap is None, largest_bytes=largest_bytes(used)
        )

    @property
    def most_gap_s(self) -> Seconds:
        """Upper bound of the gap: half the smallest latency, because latency includes the overhead of both ends."""
        return np.minimum(self.inside.latency_s, np.minimum(self.between.latency_s, self.alone.latency_s)) / 2

    def what_if(
        self, bandwidth: float = 1.0, latency: float = 1.0, oversubscription: float = 1.0, leaf_nodes: int = 16
    ) -> Network:
        """The network with `bandwidth` and `latency` between nodes scaled, and with oversubscribed leaf switches."""

        def changed(link: LinkCost) -> LinkCost:
            return LinkCost(link.latency_s * latency, link.s_per_byte / bandwidth)

        faster = replace(self, between=changed(self.between), alone=changed(self.alone))
        gap_s = faster.most_gap_s if self.gap_is_assumed else self.gap_s
        return replace(faster, oversubscription=oversubscription, leaf_nodes=leaf_nodes, gap_s=gap_s)

    def shared(self, groups: int) -> Network:
        """The network of one of several groups of ranks that use the links between nodes at the same time."""
        if groups == 1:
            return self
        return replace(self, between=self.between.slower(groups), alone=self.alone.slower(groups))

    def undrawn(self) -> Network:
        """The network of the first draw: the measured values."""

        def first(value: Any) -> Any:
            if isinstance(value, LinkCost):
                return LinkCost(first(value.latency_s), first(value.s_per_byte))
            return float(value[0]) if isinstance(value, np.ndarray) else value

        return Network(**{one.name: first(getattr(self, one.name)) for one in fields(self)})

    def hop(self, link: LinkCost, size_bytes: float) -> Seconds:
        """Seconds of a message that waits for the previous one; a rank handles at most one message per gap."""
        return np.maximum(link(size_bytes), self.gap_s)

    def link(self) -> Link:
        """The link as the executor sees it (`Profile.slowest_link`); only for a network of single numbers."""
        latency_s, together_s = float(self.alone.latency_s), float(self.between.latency_s)
        return Link(latency_s, 1 / float(self.between.s_per_byte), together_s, self.largest_bytes)

    def crowd(self, factor: Seconds, senders: int) -> Seconds:
        """The factor `incast` or `congestion`, for a number of senders."""
        return 1 + (factor - 1) * math.log2(max(1, senders)) / 5

    def uplink(self, nodes: int, links: float) -> float:
        """The slowdown of messages between leaf switches if each switch sends as much as `links` nodes can."""
        return max(1.0, links * self.oversubscription / self.leaf_nodes) if nodes > self.leaf_nodes else 1.0


@dataclass(frozen=True)
class Shape:
    """`nodes` nodes with `per_node` ranks each; unlike `World`, it does not list the ranks."""

    nodes: int
    per_node: int

    @classmethod
    def of(cls, ranks: int, per_node: int) -> Shape:
        """The shape of `ranks` ranks; UserError if they do not fill their nodes."""
        if ranks <= per_node:
            return cls(1, ranks)
        if ranks % per_node:
            raise UserError(
                f"{ranks} ranks do not fill nodes of {per_node}: use a multiple of {per_node}, or other ranks per node"
            )
        return cls(ranks // per_node, per_node)

    @property
    def ranks(self) -> int:
        """The total number of ranks."""
        return self.nodes * self.per_node

    @property
    def is_regular(self) -> bool:
        """Whether there is one level of links and the number of ranks is a power of two."""
        return 1 in (self.nodes, self.per_node) and self.ranks & (self.ranks - 1) == 0

    @property
    def world(self) -> World:
        """The shape as a `World`."""
        return World.even(self.nodes, self.per_node)


def _link_cost(link: MeasuredLink, draw: Callable[[Quantity], Seconds]) -> LinkCost:
    values = (link.latency_s, link.latency_spread), (1 / link.bytes_per_s, link.spread)
    drawn = [
        draw(Quantity(value=value, low=value * (1 - spread), high=value * (1 + spread))) for value, spread in values
    ]
    return LinkCost(*drawn)
