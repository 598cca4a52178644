"""Every reduction gives all ranks the same bits, which are the sum, for any world and any buffer."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
from needs import HOROVOD
from ranks import on_ranks
from torch import Tensor

from firetrain.cluster import link
from firetrain.errors import FiretrainError
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.context import Context
from firetrain.reduction.interface import Bucket
from firetrain.reduction.nccl_executor import NcclExecutor
from firetrain.topology import find_topology
from firetrain.transport.transport import Transport

TOPOLOGIES = (
    "direct", "double-tree", "halving-doubling", "hierarchical", "hierarchical:inner=direct,outer=double-tree",
    "parameter-server", "parameter-server:servers=2", "pipelined-tree", "ring", "torus", "tree",
)  # fmt: skip
INSIDE = ("hierarchical:inner=native", "hierarchical:inner=native,outer=ring")
# "nccl:" selects the executor for NCCL, here over Gloo
ON_NCCL = ("direct", "double-tree", "halving-doubling", "hierarchical", "ring")
ALL = ("native", *HOROVOD, "auto:candidates=ring+tree", *TOPOLOGIES, *(f"nccl:{name}" for name in ON_NCCL))
LEAST_PIECE = 1000  # in bytes; short buffers are then split into many pieces


def make(name: str, transport: Transport) -> Any:
    link._LEAST_PIECE = LEAST_PIECE
    context = Context(transport)
    if name.startswith("nccl:"):
        return NcclExecutor(find_topology(name.removeprefix("nccl:"))(transport.world), context)
    return find_reduction(name, context)


def named(size: int) -> list[str]:
    """The reductions that are possible with `size` ranks."""
    names = ALL if size > 1 else ("native", *TOPOLOGIES)
    return [name for name in names if size > 1 or "servers=2" not in name]


def integers(rank: int, length: int) -> Tensor:
    """Small whole numbers that depend on rank and place, so that sums are exact in any order."""
    return torch.randint(-1000, 1000, (length,), generator=torch.Generator().manual_seed(rank)).float()


def reals(rank: int, length: int) -> Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(100 + rank))


def doubles(rank: int, length: int) -> Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def lengths(size: int) -> list[int]:
    return sorted({1, 2, max(1, size - 1), size, size + 1, 3 * size + 1, 4099, 100_003})


def sums(transport: Transport) -> dict[str, list[Any]]:
    """For each reduction and length: (whether exact sums are right, error divided by its bound, digest of the bits)."""
    results: dict[str, list[Any]] = {}
    for name in named(transport.size):
        reduction = make(name, transport)
        # all lengths together: buffers are queued while others are under way
        exact = {length: integers(transport.rank, length) for length in lengths(transport.size)}
        real = {length: reals(transport.rank, length) for length in lengths(transport.size)}
        for pending in [reduction.start(Bucket(buffer)) for buffer in (*exact.values(), *real.values())]:
            pending.wait()
        for length in lengths(transport.size):
            ranks = range(transport.size)
            right = torch.equal(exact[length], torch.stack([integers(r, length) for r in ranks]).sum(0))
            shares = torch.stack([reals(r, length).double() for r in ranks])
            # Higham, Accuracy and Stability of Numerical Algorithms, equation 4.4, for any order of summation
            bound = (transport.size - 1) * 2.0**-24 * shares.abs().sum(0) * 1.0001 + 1e-30
            error = float(((real[length].double() - shares.sum(0)).abs() / bound).max())
            digest = hashlib.sha256(real[length].numpy().tobytes()).hexdigest()
            results.setdefault(name, []).append((right, error, digest))
        reduction.close()
    return results


@pytest.mark.parametrize(("size", "nodes"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (8, 3)])
def test_sums_are_right_and_the_same_bits_everywhere(size: int, nodes: int) -> None:
    first, *others = on_ranks(size, sums, nodes=nodes)
    for name, rows in first.items():
        for length, (right, error, _) in zip(lengths(size), rows, strict=True):
            assert right, f"{name}: wrong integer sums for {length} elements"
            assert error <= 1, f"{name}: {error:.2f} times the error bound for {length} elements"
        for other in others:
            assert [digest for _, _, digest in other[name]] == [digest for _, _, digest in rows], name


def sums_of_doubles(transport: Transport) -> dict[str, tuple[float, bool, str]]:
    """For each reduction: relative error of float64 sums, whether a float32 bucket beside is right, digest of the bits."""
    found, length = {}, 4099
    shares = torch.stack([doubles(rank, length) for rank in range(transport.size)])
    for name in (*ALL, *INSIDE, "powersgd", "top-k:density=1"):
        reduction = make(name, transport)
        buffer, beside = shares[transport.rank].clone(), integers(transport.rank, length)
        for pending in [reduction.start(Bucket(buffer)), reduction.start(Bucket(beside, 1))]:
            pending.wait()
        reduction.close()
        right = torch.equal(beside, torch.stack([integers(r, length) for r in range(transport.size)]).sum(0))
        error = float((buffer - shares.sum(0)).norm() / shares.sum(0).norm())
        found[name] = error, right, hashlib.sha256(buffer.numpy().tobytes()).hexdigest()
    return found


@pytest.mark.parametrize(("size", "nodes"), [(3, 3), (4, 2)])
def test_numbers_in_float64_are_summed_in_float64(size: int, nodes: int) -> None:
    first, *others = on_ranks(size, sums_of_doubles, nodes=nodes)
    for name, (error, right, digest) in first.items():
        assert error < 1e-15, f"{name}: {error:.1e}"
        assert right, name
        assert {other[name][2] for other in others} == {digest}, name


def repeats(transport: Transport) -> dict[str, bool]:
    """Whether each reduction gives the same bits for the same input, also after others were used."""

    def run(name: str) -> Tensor:
        reduction, buffer = make(name, transport), reals(transport.rank, 4099)
        reduction.start(Bucket(buffer)).wait()
        reduction.close()
        return buffer

    # auto measures, and may choose another reduction the next time
    names = [name for name in ALL if not name.startswith("auto")]
    before = {name: run(name) for name in names}
    return {name: torch.equal(before[name], run(name)) for name in names}


def test_the_same_input_gives_the_same_bits_again() -> None:
    for answers in on_ranks(3, repeats):
        assert all(answers.values()), answers


def poisoned(transport: Transport) -> dict[str, tuple[bool, bool]]:
    results = {}
    for name in ALL:
        buffer = torch.ones(100)
        if transport.rank == 1:
            buffer[7], buffer[50] = float("nan"), float("inf")
        reduction = make(name, transport)
        reduction.start(Bucket(buffer)).wait()
        reduction.close()
        clean = torch.cat([buffer[:7], buffer[8:50], buffer[51:]])
        results[name] = (bool(buffer[7].isnan() and buffer[50].isinf()), bool((clean == transport.size).all()))
    return results


def test_what_is_not_finite_reaches_every_rank_in_its_place_only() -> None:
    for answers in on_ranks(4, poisoned, nodes=2):
        assert set(answers.values()) == {(True, True)}, answers


@pytest.mark.parametrize(
    "buffer",
    [torch.ones(6, dtype=torch.bfloat16), torch.ones(6, dtype=torch.int64), torch.ones(2, 3), torch.ones(12)[::2]],
)
def test_memory_that_plans_would_misread_is_refused(buffer: Tensor) -> None:
    """A bucket in bfloat16 made ranks wait for bytes that never came."""
    with pytest.raises(FiretrainError, match="a bucket must be flat and contiguous memory of float32 or float64"):
        Bucket(buffer)


def test_one_rank_alone_communicates_with_nobody() -> None:
    def alone() -> None:
        transport = Transport("gloo", Identity(), World.even(1, 1), torch.device("cpu"), 1.0)
        for name in ("native", *TOPOLOGIES):
            buffer = reals(0, 100)
            find_reduction(name, Context(transport)).start(
                Bucket(buffer)
            ).wait()  # there is no process group, so any message would fail
            assert torch.equal(buffer, reals(0, 100))

    from firetrain.cluster import Identity, World

    alone()
