"""The time of a plan, message by message, as the executor sends them."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence

from firetrain.cluster import World
from firetrain.predict.network import Network, Seconds
from firetrain.topology.plan import Plan
from firetrain.topology.program import Message, Program, Receive, Send, program

# a pipeline is full with so many
_PIECES = 10
_MOST_MESSAGES = 1 << 32


def price(plan: Plan, world: World, size_bytes: int, network: Network, piece_bytes: int | None = None) -> float:
    """Seconds until the last rank has the sum of `size_bytes` bytes; `piece_bytes`: the size of pieces in pipelined plans.

    Messages leave in each rank's own order, as soon as what they carry is there. A rank's link carries one message at a time
    in each direction, a node's link to the others one for all its ranks, and so does what joins a leaf switch to the others;
    latency passes on the way and keeps no link busy. Nodes' links are priced as they were measured with all of them in use, if
    the plan ever uses most of them both ways, and else as one pair's. An added byte costs its receiver `s_per_added_byte`.
    Two messages of one rank leave, and are taken in, `gap_s` apart at least.
    """
    return price_chain(plan, world, [size_bytes], network, piece_bytes)


def price_chain(
    plan: Plan, world: World, sizes_bytes: Sequence[int], network: Network, piece_bytes: int | None = None
) -> float:
    """`price` of several buffers one after another, as buckets are reduced: a rank goes on with the next as soon as it is done
    with one, while others may still wait for theirs."""
    programs = []
    for rank in range(world.size):
        receives: list[Receive] = []
        sends: list[Send] = []
        for number, size_bytes in enumerate(sizes_bytes):
            own = program(plan, rank, max(1, size_bytes // 4), max(1, (piece_bytes or size_bytes) // 4))
            sends += [
                send._replace(message=_numbered(send.message, number), after=len(receives) + send.after)
                for send in own.sends
            ]
            receives += [receive._replace(message=_numbered(receive.message, number)) for receive in own.receives]
        programs.append(Program(rank, tuple(receives), tuple(sends)))
    return _Simulator(plan, programs, world, network).run()


def _numbered(message: Message, number: int) -> Message:
    """With a tag that no other buffer's messages have."""
    return message._replace(tag=message.tag + number * _MOST_MESSAGES)


def price_long(plan: Plan, world: World, size_bytes: int, network: Network, in_pieces: bool = True) -> float:
    """`price` with pieces as the executor would cut them, or whole chunks; many pieces are not priced one by one.

    Once a pipeline is full, its time grows by the same for every piece.
    """
    if not (in_pieces and plan.pipelined):
        return price(plan, world, size_bytes, network)
    piece = network.link().piece_bytes(size_bytes / plan.chunks, plan.depth)
    few, more, all_pieces = _PIECES, 2 * _PIECES, size_bytes / plan.chunks / piece
    if all_pieces <= more:
        return price(plan, world, size_bytes, network, piece)
    first_s, second_s = (price(plan, world, count * piece * plan.chunks, network, piece) for count in (few, more))
    return second_s + (second_s - first_s) * (all_pieces - more) / (more - few)


# a link: of a rank, a node or a leaf switch, out or in
_Place = tuple[str, str, int]


class _Simulator:
    """When each link is next free, and each rank's receives are done."""

    def __init__(self, plan: Plan, programs: list[Program], world: World, network: Network) -> None:
        self._programs, self._world, self._network = programs, world, network
        traffic = _Traffic(plan, world)
        self._between = network.between if traffic.is_dense() else network.alone
        self._slow = {key: float(value) for key, value in traffic.slowed(network).items()}
        self._round_of = plan.round_of
        self._leaf_factor = network.oversubscription / network.leaf_nodes
        self._done: list[list[float]] = [[] for _ in programs]  # of each rank's receives
        self._next = [0] * len(programs)
        self._free: dict[_Place, float] = {}
        self._arrived: dict[tuple[int, int, int], float] = {}
        self._last_s = 0.0
        self._gap_s = float(network.gap_s)
        self._may_leave = [0.0] * len(programs)  # by rank: when its next message may, after the one before
        self._may_take_in = [0.0] * len(programs)

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
        return max(ready_s, self._may_leave[source], self._free.get(self._links(send)[0][0], 0.0))

    def _leave(self, send: Send, at_s: float) -> None:
        message = send.message
        crosses = self._world.node_of[message.source] != self._world.node_of[message.target]
        wire = self._between if crosses else self._network.inside
        takes_s = 4 * (message.end - message.start) * float(wire.s_per_byte)
        end_s = at_s
        self._may_leave[message.source] = at_s + self._gap_s
        # what comes to a busy link waits in the network, not in its sender
        for link, factor in self._links(send):
            end_s = self._free[link] = max(end_s, max(at_s, self._free.get(link, 0.0)) + takes_s * factor)
        arrived_s = max(end_s + float(wire.latency_s), self._may_take_in[message.target])
        self._may_take_in[message.target] = arrived_s + self._gap_s
        self._arrived[message.source, message.target, message.tag] = arrived_s

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

    def _links(self, send: Send) -> list[tuple[_Place, float]]:
        """From the one that it leaves by to the one that it comes by, each with how much longer it takes there."""
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


class _Traffic:
    """What a plan's rounds have between nodes: chunks by sender and receiver."""

    def __init__(self, plan: Plan, world: World) -> None:
        self._pipelined, self._nodes = plan.pipelined, len(world.nodes)
        self._rounds: dict[int, dict[tuple[int, int], int]] = defaultdict(lambda: defaultdict(int))
        for number, (source, target, _, _) in zip(plan.round_of, plan.transfers, strict=True):
            here, there = world.node_of[source], world.node_of[target]
            if here != there:
                self._rounds[number][here, there] += 1

    def is_dense(self) -> bool:
        """Does more than half of the nodes ever send and receive at once?"""
        busy = [len({here for here, _ in pairs} & {there for _, there in pairs}) for pairs in self._rounds.values()]
        return self._pipelined or max(busy, default=0) > self._nodes / 2

    def slowed(self, network: Network) -> dict[tuple[int, int], Seconds]:
        """By (round, receiving node) where several nodes send to it: congestion, or incast if they send more than it can take."""
        found = {}
        for number, pairs in self._rounds.items():
            sent: dict[int, int] = defaultdict(int)
            senders: dict[int, list[int]] = defaultdict(list)
            for (here, there), count in pairs.items():
                sent[here] += count
                senders[there].append(here)
            for there, others in senders.items():
                too_much = sum(pairs[here, there] for here in others) > max(sent[here] for here in others)
                if len(others) > 1:
                    factor = network.incast if too_much else network.congestion
                    found[number, there] = network.crowd(factor, len(others))
        return found
