"""Numbers on the wire may be rounded; sums stay float32, and all ranks get the same bits."""

from __future__ import annotations

import hashlib

import pytest
import torch
from ranks import on_ranks
from torch import Tensor

from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.context import Context
from firetrain.reduction.interface import Bucket
from firetrain.reduction.nccl_executor import NcclExecutor
from firetrain.reduction.tcp_executor import TcpExecutor
from firetrain.reduction.wire import WIRE_DTYPES
from firetrain.topology import find_topology
from firetrain.transport.transport import Transport

PLANS = (
    "direct", "double-tree", "halving-doubling", "hierarchical", "parameter-server", "pipelined-tree", "ring", "torus", "tree",
)  # fmt: skip
ALL = (*PLANS, "nccl:direct", "nccl:ring", "nccl:hierarchical", "hierarchical:inner=native", "native")


def make(name: str, context: Context) -> NcclExecutor | TcpExecutor:
    if name.startswith("nccl:"):
        return NcclExecutor(find_topology(name.removeprefix("nccl:"))(context.transport.world), context)
    return find_reduction(name, context)  # type: ignore[return-value]


def reals(rank: int, length: int = 20_011) -> Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(rank))


def rounded(transport: Transport, dtype: str, names: tuple[str, ...]) -> dict[str, tuple[float, bool, str]]:
    """For each reduction: relative error of real sums, whether sums of small whole numbers are exact, digest of the bits."""
    results = {}
    shares = torch.stack([reals(rank).double() for rank in range(transport.size)])
    for name in names:
        reduction = make(name, Context(transport, dtype))
        real, whole = reals(transport.rank), torch.arange(5000.0) % 15 - transport.rank
        for pending in [reduction.start(Bucket(real)), reduction.start(Bucket(whole, 1))]:
            pending.wait()
        reduction.close()
        error = float((real.double() - shares.sum(0)).norm() / shares.sum(0).norm())
        expected = torch.stack([torch.arange(5000.0) % 15 - rank for rank in range(transport.size)]).sum(0)
        digest = hashlib.sha256(real.numpy().tobytes()).hexdigest()
        results[name] = error, torch.equal(whole, expected), digest
    return results


# bfloat16 has 8 significant bits: one rounding is off by at most 2^-9, about 0.0017 of the L2 norm
@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 0.006), ("float16", 0.0008)])
def test_rounding_is_small_and_the_same_on_all_ranks(dtype: str, bound: float) -> None:
    first, *others = on_ranks(8, rounded, dtype, ALL, nodes=4)
    for name, (error, exact, digest) in first.items():
        assert 1e-5 < error < bound, f"{name}: {error:.2e}"
        assert exact, name
        assert {other[name][2] for other in others} == {digest}, name
    if dtype == "bfloat16":
        assert first["direct"][0] < 0.005 and first["hierarchical"][0] < 0.005


def test_sums_are_not_rounded_at_every_addition() -> None:
    """A parameter server and direct round each contribution and the sum once, so their errors are well below those of others."""
    answers = on_ranks(8, rounded, "bfloat16", ("parameter-server", "direct", "ring", "native"))[0]
    assert answers["direct"][0] < 0.7 * answers["ring"][0]
    assert answers["parameter-server"][0] < 0.7 * answers["native"][0]


def ordered(transport: Transport) -> tuple[bool, bool]:
    """Whether direct, and a parameter server with two servers, give the sum in rank order, bit for bit."""
    expected = reals(0).clone()
    for rank in range(1, transport.size):
        expected += reals(rank)
    found = []
    for name in ("direct", "parameter-server:servers=2"):
        buffer = reals(transport.rank)
        reduction = find_reduction(name, Context(transport))
        reduction.start(Bucket(buffer)).wait()
        reduction.close()
        found.append(torch.equal(buffer, expected))
    return found[0], found[1]


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_direct_adds_in_the_order_of_ranks_for_every_layout(nodes: int) -> None:
    assert set(on_ranks(5, ordered, nodes=nodes)) == {(True, True)}


def memory(transport: Transport, dtype: str) -> list[bool]:
    """Whether many reductions use the same scratch memory as one."""
    same = []
    for name in PLANS:
        reduction = find_reduction(name, Context(transport, dtype))
        assert isinstance(reduction, TcpExecutor)
        wire, seen = reduction._wire, []
        for _ in range(5):
            reduction.start(Bucket(torch.ones(100_000))).wait()
            slots = (wire._landings, wire._departures, wire._apart)
            seen.append([{n: t.data_ptr() for n, t in one._memory.items()} for one in slots])
        reduction.close()
        same.append(seen[0] == seen[-1])
    return same


@pytest.mark.parametrize("dtype", list(WIRE_DTYPES))
def test_scratch_memory_is_reused_from_the_first_reduction_on(dtype: str) -> None:
    for answers in on_ranks(3, memory, dtype):
        assert all(answers), dict(zip(PLANS, answers, strict=True))
