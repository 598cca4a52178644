"""Where the messages of a plan compete for links between nodes, round by round."""

from __future__ import annotations

from collections import defaultdict

from firetrain.cluster import World
from firetrain.predict.network import Network, Seconds
from firetrain.topology.plan import Plan


class Congestion:
    """The numbers of chunks that each round of a plan sends between nodes, by sending and receiving node."""

    def __init__(self, plan: Plan, world: World) -> None:
        self._pipelined, self._nodes = plan.pipelined, len(world.nodes)
        self._rounds: dict[int, dict[tuple[int, int], int]] = defaultdict(lambda: defaultdict(int))
        for number, (source, target, _, _) in zip(plan.round_of, plan.transfers, strict=True):
            here, there = world.node_of[source], world.node_of[target]
            if here != there:
                self._rounds[number][here, there] += 1

    def is_dense(self) -> bool:
        """Whether in some round more than half of the nodes both send and receive."""
        busy = [len({here for here, _ in pairs} & {there for _, there in pairs}) for pairs in self._rounds.values()]
        return self._pipelined or max(busy, default=0) > self._nodes / 2

    def slowed(self, network: Network) -> dict[tuple[int, int], Seconds]:
        """Slowdown factors by (round, receiving node), for nodes with several senders.

        Incast if they send more to this node than any of them sends in total, otherwise congestion.
        """
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
