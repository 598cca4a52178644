"""Buckets of ranks that share a GPU are reduced on the host if NCCL refuses the ranks; here the host is also the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from ranks import on_ranks

from firetrain.bench.gpu import gradients, reductions
from firetrain.bench.gpu import ranks as rank_processes
from firetrain.bench.gpu.reductions import _check
from firetrain.bench.gpu.staged import Staged, make_reduction
from firetrain.cluster import Identity, World
from firetrain.reduction.context import Context
from firetrain.reduction.interface import Alone
from firetrain.transport.transport import Transport


def checked(transport: Transport, name: str, dtype: str) -> str:
    return _check(transport, Staged(name, Context(transport, dtype)))


@pytest.mark.parametrize("name", ["native", "ring", "direct", "hierarchical"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_are_right_and_have_the_same_bits_everywhere(name: str, dtype: str) -> None:
    assert on_ranks(4, checked, name, dtype, nodes=2) == ["right"] * 4


class Wrong(Staged):
    """Loses the last element of each sum."""

    def start(self, bucket: Any, step: int = 0) -> Any:
        pending = super().start(bucket, step)
        bucket.buffer[-1] = 0.0
        pending.wait()
        bucket.buffer[-1] += 1.0
        return Alone()


def gradients_of(transport: Transport) -> float:
    gradients.make_reduction = Staged
    return max(difference for _, difference in gradients._cases(transport))


def test_gradients_are_those_of_one_rank_with_the_whole_batch() -> None:
    assert max(on_ranks(2, gradients_of)) < 1e-5


def spoilt(transport: Transport) -> str:
    return _check(transport, Wrong("ring", Context(transport)))


def test_a_wrong_sum_is_told_with_its_step_and_bucket() -> None:
    assert set(on_ranks(2, spoilt)) == {"step 0, bucket 0: 1 of 65536 elements are wrong"}


def test_the_host_is_used_only_for_a_gpu_without_nccl() -> None:
    def context(device: str, library: str) -> Context:
        return Context(Transport(library, Identity(), World.even(1, 1), torch.device(device), 60.0))

    assert isinstance(make_reduction("native", context("cuda:0", "gloo")), Staged)
    assert not isinstance(make_reduction("native", context("cpu", "gloo")), Staged)


def test_a_refusal_by_nccl_is_kept_beside_what_the_host_then_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ranks(cases: Any, device: Any, count: int, *, library: str = "", **limits: float) -> list[dict[str, Any]]:
        asked.append(library)
        return (
            [{"ring float32": "right" if cases is reductions._cases else 0.0}] * count
            if library
            else [{"error": "Duplicate GPU detected"}] * count
        )

    monkeypatch.setattr(rank_processes, "on_ranks", ranks)
    host = "gloo on the host, because nothing worked over NCCL: Duplicate GPU detected"
    found: Iterator[tuple[str, Any]] = reductions.verify(torch.device("cuda", 0))
    assert dict(found) == {"ranks": 4, "transport": host, "cases": {"ring float32": "right"}}
    found = gradients.verify(torch.device("cuda", 0))
    assert dict(found) == {"transport": host, "ring float32": 0.0}
    assert asked == ["", "gloo"] * 2
