"""The time of an exchange follows from the rectangles that travel, message by message."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from firetrain.cluster import World
from firetrain.predict.network import LinkCost, Network
from firetrain.search.exchanges import Exchanges, firsts
from firetrain.search.grid import Grid, grids_of
from firetrain.strategy import Layer, Placement
from firetrain.strategy.traffic import message_bytes

INSIDE, BETWEEN = LinkCost(1e-6, 1e-9), LinkCost(5e-5, 8e-9)
NETWORK = Network(INSIDE, BETWEEN, BETWEEN)
LAYERS = (
    Layer("images", "weights", (), 3, 5, spread=1, output_elements=4, weights=9),
    Layer("other", "weights", ("images",), 5, 7, spread=3, output_elements=2, weights=9),
    Layer("joined", "channels", ("images", "other"), 26, 26, output_elements=1),
    Layer("last", "weights", ("joined",), 26, 9, weights=1),
)
READ = [(0, 1, 0), (0, 2, 0), (1, 2, 1), (2, 3, 0)]


def expected_ns(
    world: World, grids: dict[str, Grid], source: Layer, layer: Layer, images: int, gap_s: float = 0.0
) -> int:
    """From the messages of a placement: the bytes through each link, the gaps between those of each rank, and one latency."""
    placement = Placement("mine", world.size, LAYERS, {name: grid.split(world) for name, grid in grids.items()})
    loads: Counter[tuple[object, ...]] = Counter()
    messages: Counter[tuple[object, ...]] = Counter()
    for number, name in enumerate(layer.sources):
        if name != source.name:
            continue
        held, wanted = placement.holds(source, images), placement.wants(layer, number, images)
        for sender in range(world.size):
            for receiver in range(world.size):
                region = held[sender] & wanted[receiver]
                if sender == receiver or not region.size:
                    continue
                size_bytes = region.size * source.output_elements * 4
                here, there = world.node_of[sender], world.node_of[receiver]
                ends = (("out", sender), ("in", receiver)) if here == there else (("from", here), ("to", there))
                for end in ends:
                    loads[(here != there, *end)] += size_bytes
                messages.update([("out", sender), ("in", receiver)])
    seconds = 0.0
    for (crosses, *_), size_bytes in loads.items():
        wire = BETWEEN if crosses else INSIDE
        gaps_s = gap_s * max(messages.values())
        seconds = max(seconds, float(wire.latency_s) + max(gaps_s, size_bytes * float(wire.s_per_byte)))
    return round(1e9 * seconds)


@pytest.mark.parametrize("world", [World.even(1, 4), World.even(2, 3), World.even(4, 2)], ids=str)
@pytest.mark.parametrize("images", [16, 7])
@pytest.mark.parametrize("gap_s", [0.0, 1e-7])
def test_the_busiest_link_or_rank_decides(world: World, images: int, gap_s: float) -> None:
    exchanges, seen = Exchanges(world, images, replace(NETWORK, gap_s=gap_s)), set()
    for have in grids_of(world.size):
        for need in grids_of(world.size):
            for number, reader, place in READ:
                source, layer = LAYERS[number], LAYERS[reader]
                first = firsts(layer, [one for one in LAYERS if one.name in layer.sources])[place]
                grids = {one.name: need if one is layer else have for one in LAYERS}
                found = exchanges.ns(source, have, layer, need, first)
                expected = expected_ns(world, grids, source, layer, images, gap_s)
                assert found == expected, (have, need, source.name)
                seen.add(found)
    assert 0 in seen and len(seen) > 10


def test_what_an_exchange_takes_besides_is_added_where_something_travels() -> None:
    world, have, need = World.even(2, 2), Grid(4, 1), Grid(1, 4)
    plain, slower = Exchanges(world, 8, NETWORK), Exchanges(world, 8, NETWORK, wait_s=0.002)
    source, layer = LAYERS[1], LAYERS[2]
    first = firsts(layer, LAYERS[:2])[1]
    assert slower.ns(source, have, layer, need, first) == plain.ns(source, have, layer, need, first) + 1_000_000, (
        "of the wait before a layer, each of its two sources has its share"
    )
    assert slower.ns(source, have, layer, have, first) == plain.ns(source, have, layer, have, first) == 0


def test_messages_are_those_of_a_placement() -> None:
    world = World.even(2, 2)
    grids = {"images": Grid(4, 1), "other": Grid(1, 4), "joined": Grid(2, 2), "last": Grid(1, 4)}
    placement = Placement("mine", 4, LAYERS, {name: grid.split(world) for name, grid in grids.items()})
    of_other = [one for one in placement.messages(8) if one.layer == "other"]
    assert sum(message_bytes(placement, one) for one in of_other) == 4 * 3 * 8 // 4 * 5 * 4 * 4
