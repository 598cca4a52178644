"""The time of a plan on a network, simulated with the messages that the executor sends."""

from __future__ import annotations

from collections.abc import Sequence

from firetrain.cluster import World
from firetrain.predict.network import Network
from firetrain.predict.simulator import Simulator
from firetrain.topology.plan import Plan
from firetrain.topology.program import Message, Program, Receive, Send, program

# number of pieces after which a pipeline is assumed to be full
_PIECES = 10
_MOST_MESSAGES = 1 << 32


def price(plan: Plan, world: World, size_bytes: int, network: Network, piece_bytes: int | None = None) -> float:
    """Seconds until the last rank has the sum of `size_bytes`; `piece_bytes`: the size of pieces in pipelined plans.

    The model:

    - Each rank sends in its program's order, as soon as the content is complete.
    - A link carries one message at a time in each direction. Each rank has a link inside its node; the ranks of a node share its
      link to other nodes, and the nodes of a leaf switch share its uplink.
    - Latency does not occupy a link.
    - Node links use the bandwidth measured under full load if the plan ever uses most of them in both directions; otherwise the
      bandwidth of a single pair.
    - Each added byte costs its receiver `s_per_added_byte`.
    - Messages of one rank leave, and arrive, at least `gap_s` apart.

    >>> from firetrain.predict.network import LinkCost
    >>> from firetrain.topology import find_topology
    >>> gigabit = LinkCost(latency_s=50e-6, s_per_byte=1 / 1.2e8)
    >>> world = World.even(nodes=4, ranks_per_node=1)
    >>> for name in ("ring", "tree"):
    ...     seconds = price(find_topology(name)(world), world, 27_000_000, Network(gigabit, gigabit, gigabit))
    ...     print(f"{name}: {1000 * seconds:.0f} ms")
    ring: 338 ms
    tree: 900 ms
    """
    return price_chain(plan, world, [size_bytes], network, piece_bytes)


def price_chain(
    plan: Plan, world: World, sizes_bytes: Sequence[int], network: Network, piece_bytes: int | None = None
) -> float:
    """`price` of several consecutive buffers, like the buckets of a step.

    Each rank starts the next buffer as soon as it has finished the previous one.
    """
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
    return Simulator(plan, programs, world, network).run()


def _numbered(message: Message, number: int) -> Message:
    """The message with a tag that is unique among all buffers."""
    return message._replace(tag=message.tag + number * _MOST_MESSAGES)


def price_long(plan: Plan, world: World, size_bytes: int, network: Network, in_pieces: bool = True) -> float:
    """`price` with the executor's pieces, or with whole chunks if not `in_pieces`.

    Once a pipeline is full, every further piece takes the same time, so large numbers of pieces are extrapolated.
    """
    if not (in_pieces and plan.pipelined):
        return price(plan, world, size_bytes, network)
    piece = network.link().piece_bytes(size_bytes / plan.chunks, plan.depth)
    few, more, all_pieces = _PIECES, 2 * _PIECES, size_bytes / plan.chunks / piece
    if all_pieces <= more:
        return price(plan, world, size_bytes, network, piece)
    first_s, second_s = (price(plan, world, count * piece * plan.chunks, network, piece) for count in (few, more))
    return second_s + (second_s - first_s) * (all_pieces - more) / (more - few)
