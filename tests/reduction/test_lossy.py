"""Error feedback of lossy reductions: approximation + stored error = gradient."""

from __future__ import annotations

import pytest
import torch
from ranks import on_ranks
from torch import Tensor

from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.context import Context
from firetrain.reduction.interface import Bucket
from firetrain.reduction.powersgd import PowerSGD, orthonormal
from firetrain.reduction.top_k import TopK
from firetrain.transport.transport import Transport

SHAPES = (torch.Size([40, 6, 3, 3]), torch.Size([40]), torch.Size([10, 40]), torch.Size([3, 2]))
LENGTH = sum(shape.numel() for shape in SHAPES)
STEPS = 4


def gradient(rank: int, step: int) -> Tensor:
    return torch.randn(LENGTH, generator=torch.Generator().manual_seed(1000 * step + rank))


def run(transport: Transport, name: str, dtype: str) -> tuple[float, float, list[float]]:
    """Over some steps: |output + stored error - input| / |input|, the largest difference between ranks, and each step's own
    error."""
    reduction = find_reduction(name, Context(transport, dtype))
    assert isinstance(reduction, PowerSGD | TopK)
    out, into, errors, differ = torch.zeros(LENGTH).double(), torch.zeros(LENGTH).double(), [], 0.0
    for step in range(STEPS):
        bucket = Bucket(gradient(transport.rank, step), 0, SHAPES)
        reduction.start(bucket, step).wait()
        exact = sum(gradient(rank, step).double() for rank in range(transport.size))
        out, into = out + bucket.buffer, into + exact
        errors.append(float((bucket.buffer - exact).norm() / exact.norm()))
        everyone = transport.gather(bucket.buffer)
        differ = max(differ, *(float((other - everyone[0]).abs().max()) for other in everyone))
    kept = transport.sum(reduction.error(bucket).double())
    reduction.close()
    return float((out + kept - into).norm() / into.norm()), differ, errors


@pytest.mark.parametrize("name", ["powersgd", "powersgd:rank=4,through=ring", "top-k", "top-k:density=0.2"])
def test_nothing_is_lost_for_good(name: str) -> None:
    for missing, differ, errors in on_ranks(3, run, name, "float32"):
        assert missing < 1e-5 and differ == 0.0
        assert min(errors) > 0.05, "a lossy reduction that loses nothing was not tested"


def test_rounding_on_the_wire_is_kept_as_well_by_top_k() -> None:
    for missing, differ, _ in on_ranks(2, run, "top-k:density=0.2", "bfloat16"):
        assert missing < 1e-5 and differ == 0.0


@pytest.mark.parametrize("name", ["powersgd:rank=40", "top-k:density=1"])
def test_at_full_size_they_are_exact(name: str) -> None:
    for _, _, errors in on_ranks(2, run, name, "float32"):
        assert max(errors) < 1e-6


def low_rank(transport: Transport) -> float:
    """The error for gradients whose sum over all ranks has rank 2."""
    left, right = torch.randn(30, 2, generator=torch.Generator().manual_seed(1)), torch.randn(2, 50)
    right = transport.broadcast(right)
    reduction = find_reduction("powersgd:rank=2", Context(transport))
    buffer = ((transport.rank + 1) * left @ right).flatten()
    reduction.start(Bucket(buffer, 0, (torch.Size([30, 50]),))).wait()
    exact = sum(rank + 1 for rank in range(transport.size)) * left @ right
    return float((buffer - exact.flatten()).norm() / exact.norm())


def test_powersgd_finds_what_has_its_rank() -> None:
    assert max(on_ranks(2, low_rank)) < 1e-5


def test_factors_of_different_heights_are_orthonormal_together_and_a_dependent_column_becomes_zero() -> None:
    generator = torch.Generator().manual_seed(3)
    heights, columns = (40, 7, 25), torch.zeros(3, 40, 4, dtype=torch.float64)
    for number, height in enumerate(heights):
        columns[number, :height] = torch.randn(height, 4, generator=generator, dtype=torch.float64)
    columns[1, :, 2] = 3 * columns[1, :, 0]
    columns[2, :, 1] += 1e5 * columns[2, :, 0]  # nearly parallel, but independent
    basis = orthonormal(columns)
    expected = torch.eye(4, dtype=torch.float64).repeat(3, 1, 1)
    expected[1, 2, 2] = 0.0
    assert (basis.mT @ basis - expected).abs().max() < 1e-12
    assert (basis @ (basis.mT @ columns) - columns).abs().max() < 1e-9, "the basis spans the columns"
    assert not basis[1, 7:].any()
    assert not orthonormal(torch.zeros(1, 5, 2)).any()
