"""Reductions between nodes with separate addresses and limited links."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import network
import pytest
import torch
from needs import need
from ranks import on_ranks

from firetrain.bench.link import bench_link
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.context import Context
from firetrain.reduction.interface import Bucket
from firetrain.transport.transport import Transport

NAMES = (
    "native", "direct", "double-tree", "halving-doubling", "hierarchical", "hierarchical:inner=native", "parameter-server",
    "pipelined-tree", "ring", "torus", "tree",
)  # fmt: skip


@pytest.fixture(scope="module")
def nodes() -> Iterator[network.Network]:
    need(network.missing())
    with network.Network(3, "200mbit") as three:
        yield three


def sums(transport: Transport) -> tuple[str, list[str]]:
    """The world that the ranks find, and the reductions whose sums of whole numbers are wrong."""
    wrong = []
    for name in NAMES:
        reduction = find_reduction(name, Context(transport))
        for length in (1, 1000, 300_000):
            buffer = torch.arange(length).float() % 97 + transport.rank
            reduction.start(Bucket(buffer)).wait()
            expected = (torch.arange(length).float() % 97) * transport.size + sum(range(transport.size))
            wrong += [] if torch.equal(buffer, expected) else [f"{name} {length}"]
        reduction.close()
    return str(transport.world), wrong


def test_every_reduction_sums_across_the_network(nodes: network.Network) -> None:
    for world, wrong in on_ranks(6, sums, nodes=3, network=nodes):
        assert world == "6 ranks on 3 nodes, 2 each" and wrong == []


def links(transport: Transport) -> dict[tuple[str, str], float]:
    return {(link.level, link.pairs): link.bytes_per_s for link in bench_link(transport, 2)}


def test_the_measured_bandwidth_between_nodes_is_that_of_the_links(nodes: network.Network) -> None:
    found = on_ranks(6, links, nodes=3, network=nodes)[0]
    rate = 200e6 / 8
    assert 0.85 * rate < found["between nodes", "one"] < 1.05 * rate
    # two ranks share a node's link
    assert 0.35 * rate < found["between nodes", "all"] < 0.55 * rate
    assert found["inside a node", "one"] > 3 * rate


def test_nothing_of_it_stays_behind() -> None:
    def namespaces() -> str:
        return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout

    need(network.missing())
    before = namespaces()
    with network.Network(2, "none") as two:
        assert all(name in namespaces() for name in two.names)
    assert namespaces() == before
    with pytest.raises(RuntimeError, match="tc"), network.Network(2, "fast"):
        pass
    assert namespaces() == before
