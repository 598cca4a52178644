"""The time of a plan, message by message, as the executor sends them."""

from __future__ import annotations

import heapq

from firetrain.cluster import World
from firetrain.predict.network import Network
from firetrain.topology.plan import Plan
from firetrain.topology.program import Program, Receive, Send, program


def price(plan: Plan, world: World, size_bytes: int, network: Network, piece_bytes: int | None = None) -> float:
    """Seconds until the last rank has the sum of `size_bytes` bytes; `piece_bytes`: the size of pieces in pipelined plans.

    Messages leave in each rank's own order, as soon as what they carry is there. A rank's link carries one message at a time
    in each direction, a node's link to the others one for all its ranks; latency passes on the way and keeps no link busy.
    An added byte costs its receiver `s_per_added_byte`.
    """
    length = max(1, size_bytes // 4)
    piece = max(1, (piece_bytes or size_bytes) // 4)
    programs = [program(plan, rank, length, piece) for rank in range(world.size)]
    return _Clockwork(programs, world, network).run()


class _Clockwork:
    """When each link is next free, and each rank's receives are done."""

    def __init__(self, programs: list[Program], world: World, network: Network) -> None:
        self._programs, self._world, self._network = programs, world, network
        self._done: list[list[float]] = [[] for _ in programs]  # of each rank's receives
        self._next = [0] * len(programs)
        self._free: dict[tuple[str, str, int], float] = {}
        self._arrived: dict[tuple[int, int, int], float] = {}
        self._last_s = 0.0

    def run(self) -> float:
        """In the order in which messages can leave."""
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
        place = self._next[rank]
        return sends[place] if place < len(sends) and sends[place].after <= len(self._done[rank]) else None

    def _can_leave(self, send: Send) -> float:
        source = send.message.source
        ready_s = self._done[source][send.after - 1] if send.after else 0.0
        return max(ready_s, self._free.get(self._links(send)[0], 0.0))

    def _leave(self, send: Send, at_s: float) -> None:
        message, network = send.message, self._network
        crosses = self._world.node_of[message.source] != self._world.node_of[message.target]
        wire = network.between if crosses else network.inside
        takes_s = 4 * (message.end - message.start) * float(wire.s_per_byte)
        out, into = self._links(send)
        self._free[out] = at_s + takes_s
        # what comes to a busy link waits in the network, not in its sender
        self._free[into] = max(self._free[out], self._free.get(into, 0.0) + takes_s)
        self._arrived[message.source, message.target, message.tag] = self._free[into] + float(wire.latency_s)

    def _take_in(self, rank: int) -> None:
        """What has come, in the order of the rank's receives."""
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

    def _links(self, send: Send) -> tuple[tuple[str, str, int], tuple[str, str, int]]:
        """The one that it leaves by, and the one that it comes by."""
        source, target = send.message.source, send.message.target
        here, there = self._world.node_of[source], self._world.node_of[target]
        if here == there:
            return ("rank", "out", source), ("rank", "in", target)
        return ("node", "out", here), ("node", "in", there)
