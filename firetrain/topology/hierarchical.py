"""Hierarchical: inside the nodes first, over their fast links; then between the nodes, once per node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest

from firetrain.cluster import World
from firetrain.topology.plan import Plan, Transfer
from firetrain.topology.ring import all_gather, reduce_scatter


def hierarchical(world: World) -> Plan:
    """Reduce-scatter inside each node, ring all-reduce between nodes, all-gather inside each node.

    With m nodes, and g ranks on the fullest of them, the buffer is cut into g shares of m chunks. On each node the
    shares are dealt out to its ranks in turn, so nodes may have different numbers of ranks; the ranks that hold the same
    share form a ring between the nodes. With g ranks on every node: depth 2(g-1) + 2(m-1); each rank sends and
    receives 2(g-1)/g of the buffer inside its node and 2(m-1)/(gm) between nodes.
    """
    nodes = world.nodes
    widest = max(map(len, nodes))
    shares = [range(share * len(nodes), (share + 1) * len(nodes)) for share in range(widest)]

    def parts(ranks: tuple[int, ...]) -> list[list[int]]:
        """The chunks that each of a node's ranks holds after the reduce-scatter."""
        return [[*chain(*shares[local :: len(ranks)])] for local in range(len(ranks))]

    inward = [reduce_scatter(ranks, parts(ranks)) for ranks in nodes]
    outward = [all_gather(ranks, parts(ranks)) for ranks in nodes]
    between = []
    for number, share in enumerate(shares):
        owners = [ranks[number % len(ranks)] for ranks in nodes]
        one_each = [[chunk] for chunk in share]
        between.append(chain(reduce_scatter(owners, one_each), all_gather(owners, one_each)))
    transfers = chain(_in_turn(inward), _in_turn(between), _in_turn(outward))
    return Plan("hierarchical", world.size, widest * len(nodes), tuple(transfers))


def _in_turn(sources: Iterable[Iterator[Transfer]]) -> Iterator[Transfer]:
    """One transfer of each in turn, so that a rank which serves two rings does not finish one before the other."""
    for row in zip_longest(*sources):
        yield from (transfer for transfer in row if transfer is not None)
