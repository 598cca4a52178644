"""A plan's price is the sum over its messages, and the closed forms equal it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firetrain.cluster import Link, World
from firetrain.errors import UserError
from firetrain.predict.formulas import FORMULAS, find_formula
from firetrain.predict.network import LinkCost, Network, Shape
from firetrain.predict.price import price, price_chain, price_long
from firetrain.topology.catalogue import find_topology

MIB = 1 << 20
EXACT = ("ring", "tree", "halving-doubling", "parameter-server", "hierarchical", "torus")


def network(latency_s: float = 2e-5, s_per_byte: float = 1e-9, added: float = 1e-10, inside: float = 5e-11) -> Network:
    between = LinkCost(latency_s, s_per_byte)
    return Network(LinkCost(latency_s / 4, inside), between, between, added)


def priced(name: str, world: World, size: int, links: Network) -> float:
    plan = find_topology(name)(world)
    link = Link(float(links.between.latency_s), 1 / float(links.between.s_per_byte))
    piece = link.piece_bytes(size / plan.chunks, plan.depth) if name in ("double-tree", "pipelined-tree") else None
    return price(plan, world, size, links, piece)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 32])
def test_a_closed_form_is_the_price_of_the_plan_where_it_is_regular(name: str, ranks: int) -> None:
    links = network()
    found = FORMULAS[name].seconds(Shape(ranks, 1), 8 * MIB, links)
    assert found == pytest.approx(priced(name, World.even(ranks, 1), 8 * MIB, links), rel=1e-6)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8, 12, 16, 24, 32])
def test_a_closed_form_is_near_the_price_elsewhere(name: str, ranks: int) -> None:
    links = network()
    found = FORMULAS[name].seconds(Shape(ranks, 1), 8 * MIB, links)
    assert found == pytest.approx(priced(name, World.even(ranks, 1), 8 * MIB, links), rel=0.2)


@pytest.mark.parametrize("name", ["ring", "tree", "halving-doubling", "hierarchical", "parameter-server"])
@pytest.mark.parametrize("shape", [Shape(4, 4), Shape(2, 8), Shape(8, 2)])
def test_with_several_ranks_on_a_node_it_is_within_a_tenth(name: str, shape: Shape) -> None:
    links = network()
    found = FORMULAS[name].seconds(shape, 8 * MIB, links)
    assert found == pytest.approx(priced(name, shape.world, 8 * MIB, links), rel=0.1)


@pytest.mark.parametrize("name", ["ring", "tree", "halving-doubling", "direct", "parameter-server"])
def test_leaf_switches_and_crowds_cost_a_plan_what_they_cost_its_formula(name: str) -> None:
    """16 nodes, 4 per leaf switch, whose uplink is the bottleneck of all traffic that leaves the leaf."""
    plain = replace(network(), incast=3.0, congestion=2.0)
    for links, most in ((plain, 5e-3), (plain.what_if(oversubscription=8, leaf_nodes=4), 0.25)):
        found = float(FORMULAS[name].seconds(Shape(16, 1), 8 * MIB, links))
        assert found == pytest.approx(priced(name, World.even(16, 1), 8 * MIB, links), rel=most)


@pytest.mark.parametrize("name", ["double-tree", "pipelined-tree"])
@pytest.mark.parametrize("ranks", [3, 6, 8])
def test_many_pieces_are_priced_from_few(name: str, ranks: int) -> None:
    """A buffer of 16 MiB in pieces of 64 KiB, priced message by message and extrapolated from 20 pieces."""
    links, world = network(), World.even(ranks, 1)
    found = price_long(find_topology(name)(world), world, 16 * MIB, links)
    assert found == pytest.approx(priced(name, world, 16 * MIB, links), rel=0.05)


def test_buckets_one_after_another_overlap_where_ranks_are_done_early() -> None:
    """A tree of two ranks gains nothing: each waits for the other. A server sends sums while it receives the next buffers."""
    links = network(latency_s=1e-9, added=0.0)
    plan, world = find_topology("tree")(World.even(2, 1)), World.even(2, 1)
    alone_s = price(plan, world, MIB, links)
    assert alone_s == pytest.approx(2 * MIB * 1e-9, rel=1e-3)
    assert price_chain(plan, world, [MIB, MIB], links) == pytest.approx(2 * alone_s, rel=1e-3), "it waits for its sum"
    server, world = find_topology("parameter-server")(World.even(4, 1)), World.even(4, 1)
    whole_s = price(server, world, MIB, links)
    chained_s = price_chain(server, world, [MIB] * 4, links)
    # the server sends a sum to one rank while it receives the next buffer of another rank
    assert whole_s < chained_s < 0.8 * 4 * whole_s
    ring = find_topology("ring")(world)
    assert price_chain(ring, world, [MIB] * 4, links) == pytest.approx(4 * price(ring, world, MIB, links), rel=1e-3)


@pytest.mark.parametrize("name", ["ring", "tree", "halving-doubling", "direct", "parameter-server", "torus"])
@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 32])
def test_messages_that_cost_more_than_their_bytes_cost_a_plan_what_they_cost_its_formula(name: str, ranks: int) -> None:
    """4 KiB over links on which a message keeps both ranks busy for half of its latency."""
    links = replace(network(added=0.0), gap_s=1e-5)
    found = float(FORMULAS[name].seconds(Shape(ranks, 1), 4096, links))
    assert found == pytest.approx(priced(name, World.even(ranks, 1), 4096, links), rel=0.1)


def test_the_messages_of_one_rank_follow_one_another_by_hand() -> None:
    """A server of four ranks receives three messages and sends three, one gap apart; direct does so in both of its rounds."""
    links = replace(network(latency_s=2e-5, s_per_byte=1e-15, added=0.0), gap_s=5e-6)
    for name, by_hand_s in (("parameter-server", 2 * (2e-5 + 2 * 5e-6)), ("direct", 2 * (2e-5 + 2 * 5e-6))):
        assert priced(name, World.even(4, 1), 4096, links) == pytest.approx(by_hand_s, rel=1e-3), name


def test_the_price_of_two_ranks_is_done_by_hand() -> None:
    """A ring of two ranks exchanges halves, adds them, and exchanges the sums: 2 (a + n/2 b) + n/2 c."""
    by_hand = 2 * (2e-5 + 0.5 * MIB * 1e-9) + 0.5 * MIB * 1e-10
    assert priced("ring", World.even(2, 1), MIB, network()) == pytest.approx(by_hand, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(FORMULAS)), nodes=st.integers(1, 40), per_node=st.sampled_from([1, 2, 4, 8]),
    size=st.integers(1 << 10, 1 << 28), latency_s=st.floats(1e-7, 1e-3), s_per_byte=st.floats(1e-12, 1e-8),
    added=st.floats(0, 1e-9),
)  # fmt: skip
def test_no_reduction_is_faster_than_physics_or_cheaper_for_a_worse_link(
    name: str, nodes: int, per_node: int, size: int, latency_s: float, s_per_byte: float, added: float
) -> None:
    shape = Shape(nodes, per_node)
    if shape.ranks < 2:
        return

    def seconds(latency_s: float, s_per_byte: float, size: int, added: float = added) -> float:
        links = network(latency_s, s_per_byte, added, inside=s_per_byte / 8)
        return float(FORMULAS[name].seconds(shape, size, links))

    found = seconds(latency_s, s_per_byte, size)
    # each node has to send 2(m-1)/m of the buffer, each rank of a single node 2(g-1)/g (Patarasuk and Yuan 2009)
    count, byte_s = (nodes, s_per_byte) if nodes > 1 else (per_node, s_per_byte / 8)
    bound = 2 * (count - 1) / count * size * byte_s
    assert found >= bound * (1 - 1e-9) and found > 0
    assert seconds(2 * latency_s, s_per_byte, size) >= found  # in a ring, the busiest link may hide it
    assert seconds(latency_s, 2 * s_per_byte, size) > found
    assert seconds(latency_s, s_per_byte, 2 * size) > found
    assert seconds(latency_s, s_per_byte, size, added + 1e-6) > found


def test_hierarchical_takes_the_topology_between_nodes() -> None:
    links = network()
    plain, tree = find_formula("hierarchical"), find_formula("hierarchical:inner=ring,outer=tree")
    assert tree.seconds(Shape(8, 2), MIB, links) != plain.seconds(Shape(8, 2), MIB, links)
    with pytest.raises(UserError, match="did you mean ring?"):
        find_formula("rign")
    with pytest.raises(UserError, match="do not fill nodes of 4"):
        Shape.of(6, 4)
    assert math.prod((Shape.of(3, 4).nodes, Shape.of(3, 4).per_node)) == 3
