"""The simulator's times beside times worked out by hand: latency 1 s, and 1 s per 4,000 bytes, unless said otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from firetrain.cluster import World
from firetrain.predict.congestion import Congestion
from firetrain.predict.network import LinkCost, Network
from firetrain.predict.price import price
from firetrain.topology import Plan, Transfer, find_topology

CHUNK_BYTES = 4000
LINK = LinkCost(latency_s=1.0, s_per_byte=1 / CHUNK_BYTES)
NETWORK = Network(inside=LINK, between=LINK, alone=LINK)


def seconds(
    *transfers: tuple[int, int, int, bool], ranks: int = 4, nodes: int = 4, chunks: int = 1, network: Network = NETWORK
) -> float:
    """The simulated seconds of these transfers, in which a chunk takes a second on the wire."""
    plan = Plan("by hand", ranks, chunks, tuple(Transfer(*one) for one in transfers))
    return float(price(plan, World.even(nodes, ranks // nodes), chunks * CHUNK_BYTES, network))


def test_a_message_takes_its_latency_and_its_time_on_the_wire() -> None:
    assert seconds((0, 1, 0, False)) == pytest.approx(2.0)


def test_an_addition_takes_time_after_the_arrival_and_a_copy_none() -> None:
    adding = replace(NETWORK, s_per_added_byte=0.5 / CHUNK_BYTES)
    assert seconds((0, 1, 0, True), network=adding) == pytest.approx(2.5)
    assert seconds((0, 1, 0, False), network=adding) == pytest.approx(2.0)


def test_messages_between_different_ranks_do_not_wait_for_each_other() -> None:
    assert seconds((0, 1, 0, False), (2, 3, 0, False)) == pytest.approx(2.0)


def test_both_directions_of_a_link_are_used_at_once() -> None:
    assert seconds((0, 1, 0, False), (1, 0, 1, False), chunks=2) == pytest.approx(2.0)


def test_a_chain_waits_for_each_arrival() -> None:
    assert seconds((0, 1, 0, False), (1, 2, 0, False), (2, 3, 0, False)) == pytest.approx(6.0)


def test_a_rank_sends_its_next_chunk_while_the_one_before_is_on_its_way() -> None:
    assert seconds((0, 1, 0, False), (0, 2, 1, False), chunks=2) == pytest.approx(3.0), "its link is busy for a second"


def test_a_receiver_s_link_takes_one_message_after_another() -> None:
    assert seconds((0, 3, 0, True), (1, 3, 0, True), (2, 3, 0, True)) == pytest.approx(4.0)


def test_ranks_of_a_node_share_its_link_to_others_but_not_the_links_inside() -> None:
    crossing = ((0, 2, 0, False), (1, 3, 1, False))
    assert seconds(*crossing, nodes=2, chunks=2) == pytest.approx(3.0), "one link carries both"
    assert seconds((0, 1, 0, False), (2, 3, 0, False), nodes=2) == pytest.approx(2.0)
    faster = replace(NETWORK, inside=LinkCost(0.1, 0.1 / CHUNK_BYTES))
    assert seconds((0, 1, 0, False), nodes=2, network=faster) == pytest.approx(0.2)


def test_a_rank_sends_and_takes_in_at_most_one_message_per_gap() -> None:
    slow = replace(NETWORK, gap_s=0.7)
    short = replace(slow, between=LinkCost(1.0, 0.0), alone=LinkCost(1.0, 0.0))
    assert seconds((0, 1, 0, False), (0, 2, 0, False), (0, 3, 0, False), network=short) == pytest.approx(1.0 + 2 * 0.7)
    assert seconds((0, 3, 0, True), (1, 3, 0, True), (2, 3, 0, True), network=short) == pytest.approx(1.0 + 2 * 0.7)
    assert seconds((0, 1, 0, False), (0, 2, 0, False), network=slow) == pytest.approx(3.0), "the wire takes longer"


def test_an_uplink_of_a_leaf_switch_carries_what_all_its_nodes_send_to_others() -> None:
    crossing = ((0, 2, 0, False), (1, 3, 1, False))
    leaves = replace(NETWORK, leaf_nodes=2, oversubscription=2.0)
    assert seconds(*crossing, chunks=2, network=replace(leaves, oversubscription=1.0)) == pytest.approx(2.0)
    assert seconds(*crossing, chunks=2, network=leaves) == pytest.approx(3.0), "it has the bandwidth of one node"
    assert seconds((0, 1, 0, False), (2, 3, 0, False), network=leaves) == pytest.approx(2.0), "inside leaves"


def test_many_senders_to_one_node_are_slowed_by_incast_and_all_to_all_by_congestion() -> None:
    crowded = replace(NETWORK, incast=6.0, congestion=11.0)
    into_one = ((0, 3, 0, True), (1, 3, 0, True))
    # two senders: a fifth of what 32 senders cost more
    assert seconds(*into_one, network=crowded) == pytest.approx(1.0 + 2 * 2.0)
    assert Congestion(find_topology("parameter-server")(World.even(4, 1)), World.even(4, 1)).slowed(crowded)[
        0, 0
    ] == pytest.approx(crowded.crowd(6.0, 3))
    direct = Congestion(find_topology("direct")(World.even(4, 1)), World.even(4, 1)).slowed(crowded)
    assert {node: factor for (number, node), factor in direct.items() if number == 0} == {
        node: pytest.approx(crowded.crowd(11.0, 3)) for node in range(4)
    }


@pytest.mark.parametrize(
    ("name", "dense"), [("ring", True), ("direct", True), ("tree", False), ("parameter-server", False)]
)
def test_links_are_shared_by_all_nodes_only_in_dense_plans(name: str, dense: bool) -> None:
    world = World.even(8, 1)
    assert Congestion(find_topology(name)(world), world).is_dense() is dense
    alone = replace(NETWORK, alone=LinkCost(0.5, LINK.s_per_byte))
    took = {kind: price(find_topology(name)(world), world, 8 * CHUNK_BYTES, kind) for kind in (NETWORK, alone)}
    assert (took[alone] == took[NETWORK]) is dense


def test_messages_inside_a_node_are_no_traffic_between_nodes() -> None:
    world = World.even(1, 8)
    traffic = Congestion(find_topology("tree")(world), world)
    assert not traffic.is_dense() and traffic.slowed(replace(NETWORK, incast=9.0)) == {}
