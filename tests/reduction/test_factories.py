"""The libraries' own reductions: rejected parameters, and reported facts."""

from __future__ import annotations

import pytest
import torch
from ranks import on_ranks

from firetrain.errors import UserError
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.context import Context
from firetrain.reduction.interface import Bucket
from firetrain.transport.transport import Transport


def refusal(transport: Transport, name: str) -> str:
    try:
        find_reduction(name, Context(transport))
    except UserError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("native:algorithm=tree", "native: algorithm=tree is for NCCL; gloo has one algorithm: omit it"),
        ("hierarchical:inner=native", "hierarchical: inner=native needs equally many ranks on each node"),
        ("torus:columns=2", "torus: columns must divide the number of ranks (columns: 2, ranks: 3)"),
        ("parameter-server:servers=4", "parameter-server: servers must be from 1 to the number of ranks (servers: 4"),
        ("parameter-server:server=1", "unknown parameter 'server', did you mean servers? (valid: servers)"),
        ("ring:columns=1", "ring has no parameters (columns=1)"),
        ("powersgd:rank=0", "powersgd: rank must be from 1 to 4096 (rank: 0)"),
        ("top-k:density=2", "top-k: density must be from 1e-06 to 1 (density: 2)"),
        ("top-k:density=much", "top-k: density is 'much', expected float"),
    ],
)
def test_what_does_not_fit_is_refused_on_every_rank(name: str, told: str) -> None:
    for text in on_ranks(3, refusal, name, nodes=2):
        assert told in text


def scattered(transport: Transport, outer: str) -> bool:
    """Whether whole numbers are summed exactly by the library's reduce-scatter and all-gather, with `outer` between nodes."""
    reduction = find_reduction(f"hierarchical:inner=native,outer={outer}", Context(transport))
    lengths = (1, 2, 3, 7, 1000, 4099)
    buffers = [torch.arange(float(length)) + transport.rank for length in lengths]
    for number, buffer in enumerate(buffers):
        reduction.start(Bucket(buffer, number)).wait()
    ranks = transport.size
    expected = [torch.arange(float(length)) * ranks + ranks * (ranks - 1) / 2 for length in lengths]
    return all(torch.equal(buffer, exact) for buffer, exact in zip(buffers, expected, strict=True))


@pytest.mark.parametrize("outer", ["native", "ring", "double-tree", "direct"])
@pytest.mark.parametrize(("ranks", "nodes"), [(4, 2), (6, 3), (3, 3), (2, 1)])
def test_hierarchical_by_the_library_with_any_topology_between_nodes(outer: str, ranks: int, nodes: int) -> None:
    assert all(on_ranks(ranks, scattered, outer, nodes=nodes))
