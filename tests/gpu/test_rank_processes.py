"""Ranks of the GPU check that fail or die do not keep the others, or the check, waiting."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from firetrain.bench.gpu import ranks
from firetrain.bench.gpu.ranks import on_ranks, on_ranks_sharing
from firetrain.transport.transport import Transport

CPU = torch.device("cpu")


def fine(transport: Transport) -> Iterator[tuple[str, Any]]:
    yield "sum", float(transport.sum(torch.ones(1)))
    yield "rank", transport.rank


def one_raises(transport: Transport) -> Iterator[tuple[str, Any]]:
    yield "before", True
    if transport.rank == 1:
        raise RuntimeError("no such kernel")
    time.sleep(60)  # as if it waited for the other rank


def one_dies(transport: Transport) -> Iterator[tuple[str, Any]]:
    if transport.rank == 0:
        os._exit(3)
    yield "alive", True
    raise RuntimeError("lost its peer")


def test_results_come_in_the_order_of_ranks() -> None:
    assert on_ranks(fine, CPU, 2) == [{"sum": 2.0, "rank": 0}, {"sum": 2.0, "rank": 1}]


@pytest.mark.parametrize(("cases", "failed", "said"), [(one_raises, 1, "no such kernel"), (one_dies, 0, "exit code 3")])
def test_the_others_are_not_waited_for(cases: Any, failed: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_AFTER_AN_ERROR_S", 1.0)
    began_s = time.monotonic()
    found = on_ranks(cases, CPU, 2)
    assert time.monotonic() - began_s < 45
    assert said in found[failed]["error"]
    assert "error" in found[1 - failed], "the other rank ended without a result, or with an error of its own"
    assert any("before" in one or "alive" in one for one in found), "what was found before the failure is kept"


def refused(cases: Any, transport: Transport) -> Iterator[tuple[str, Any]]:
    raise RuntimeError("ncclInvalidUsage: Duplicate GPU detected")
    yield from cases(transport)


def hangs(cases: Any, transport: Transport) -> Iterator[tuple[str, Any]]:
    if transport.rank == 1:
        time.sleep(60)
    yield ranks._SUM, 2.0
    yield from cases(transport)


@pytest.fixture
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "is_gpu", lambda device: True)  # of the check only: its ranks compute on the CPU
    monkeypatch.setattr(ranks, "_FIRST_S", 20.0)


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_ranks_that_share_a_gpu_are_started_once_if_their_first_sum_is_right() -> None:
    library, found = on_ranks_sharing(fine, CPU, 2)
    assert library == "nccl" and found == [{"sum": 2.0, "rank": 0}, {"sum": 2.0, "rank": 1}]


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize(("first", "said"), [(refused, "Duplicate GPU detected"), (hangs, "no result after the start")])
def test_ranks_that_nccl_refuses_or_lets_hang_communicate_over_gloo(
    first: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "_after_a_sum", first)
    library, found = on_ranks_sharing(fine, CPU, 2)
    assert library.startswith("gloo on the host, because nothing worked over NCCL: ") and said in library
    assert [one["rank"] for one in found] == [0, 1]
