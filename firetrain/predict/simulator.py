"""Simulate a plan on a network, message by message."""

from __future__ import annotations

import heapq

from firetrain.cluster import World
from firetrain.predict.congestion import Congestion
from firetrain.predict.network import Network
from firetrain.topology.plan import Plan
from firetrain.topology.program import Program, Receive, Send

# one direction (out, in) of the link of a rank, a node or a leaf switch
_Place = tuple[str, str, int]


class Simulator:
    """Discrete-event simulation of a plan.

    State: when each link is free, and when each receive completes. Each rank sends in its program's order, as soon as the
    content is complete. Costs come from `Network`.
    """

    def __init__(self, plan: Plan, programs: list[Program], world: World, network: Network) -> None:
        self._programs, self._world, self._network = programs, world, network
        congestion = Congestion(plan, world)
        self._between = network.between if congestion.is_dense() else network.alone
        self._slow = {key: float(value) for key, value in congestion.slowed(network).items()}
        self._round_of = plan.round_of
        self._leaf_factor = network.oversubscription / network.leaf_nodes
        self._done: list[list[float]] = [[] for _ in programs]  # per rank: times at which its receives completed
        self._next = [0] * len(programs)
        self._free: dict[_Place, float] = {}
        self._arrived: dict[tuple[int, int, int], float] = {}
        self._last_s = 0.0
        self._gap_s = float(network.gap_s)
        self._may_leave = [0.0] * len(programs)  # per rank: earliest time of the next send
        self._may_take_in = [0.0] * len(programs)  # per rank: earliest time of the next arrival

    def run(self) -> float:
        """Seconds until the last receive completes. Messages are simulated in the order of their earliest send times."""
        waiting = [(0.0, rank) for rank in range(len(self._programs))]
        heapq.heapify(waiting)
        while waiting:
            ready_s, rank = heapq.heappop(waiting)
            send = self._next_send(rank)
            if send is None:
                continue
            can_s = self._can_leave(send)
            if can_s > ready_s:
                heapq.heappush(waiting, (can_s, rank))
                continue
            self._leave(send, can_s)
            self._next[rank] += 1
            for one in (rank, send.message.target):
                self._take_in(one)
                heapq.heappush(waiting, (ready_s, one))
        return self._last_s

    def _next_send(self, rank: int) -> Send | None:
        sends = self._programs[rank].sends
        index = self._next[rank]
        return sends[index] if index < len(sends) and sends[index].after <= len(self._done[rank]) else None

    def _can_leave(self, send: Send) -> float:
        source = send.message.source
        ready_s = self._done[source][send.after - 1] if send.after else 0.0
        return max(ready_s, self._may_leave[source], self._free.get(self._links(send)[0][0], 0.0))

    def _leave(self, send: Send, at_s: float) -> None:
        message = send.message
        crosses = self._world.node_of[message.source] != self._world.node_of[message.target]
        cost = self._between if crosses else self._network.inside
        takes_s = 4 * (message.end - message.start) * float(cost.s_per_byte)
        end_s = at_s
        self._may_leave[message.source] = at_s + self._gap_s
        # a message queues in the network, so it does not block its sender
        for link, factor in self._links(send):
            end_s = self._free[link] = max(end_s, max(at_s, self._free.get(link, 0.0)) + takes_s * factor)
        arrived_s = max(end_s + float(cost.latency_s), self._may_take_in[message.target])
        self._may_take_in[message.target] = arrived_s + self._gap_s
        self._arrived[message.source, message.target, message.tag] = arrived_s

    def _take_in(self, rank: int) -> None:
        """Complete the receives whose messages have arrived, in the rank's order."""
        receives = self._programs[rank].receives
        while len(self._done[rank]) < len(receives):
            receive = receives[len(self._done[rank])]
            key = receive.message.source, receive.message.target, receive.message.tag
            if key not in self._arrived:
                return
            self._done[rank].append(self._received_s(rank, receive, self._arrived[key]))

    def _received_s(self, rank: int, receive: Receive, arrived_s: float) -> float:
        message, network = receive.message, self._network
        before_s = self._done[rank][-1] if self._done[rank] else 0.0
        added_bytes = 4 * (message.end - message.start) if message.adds else 0
        done_s = max(arrived_s, before_s) + added_bytes * float(network.s_per_added_byte)
        self._last_s = max(self._last_s, done_s)
        return done_s

    def _links(self, send: Send) -> list[tuple[_Place, float]]:
        """The links from sender to receiver, each with the factor by which it is slowed down."""
        source, target = send.message.source, send.message.target
        here, there = self._world.node_of[source], self._world.node_of[target]
        if here == there:
            return [(("rank", "out", source), 1.0), (("rank", "in", target), 1.0)]
        slow = self._slow.get((self._round_of[send.message.transfer], there), 1.0)
        ends = [(("node", "out", here), 1.0), (("node", "in", there), slow)]
        leaf, other = here // self._network.leaf_nodes, there // self._network.leaf_nodes
        if leaf != other and self._network.oversubscription > 1:
            ends[1:1] = [(("leaf", "out", leaf), self._leaf_factor), (("leaf", "in", other), self._leaf_factor)]
        return ends
