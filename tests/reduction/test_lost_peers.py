"""A rank that dies or stops responding becomes an error within the time limit, which says what was waited for."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
from needs import HOROVOD
from ranks import on_ranks

from firetrain.errors import LostPeer
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.context import Context
from firetrain.reduction.interface import Bucket
from firetrain.transport.transport import Transport

PLANS = (
    "direct", "double-tree", "halving-doubling", "hierarchical", "parameter-server", "pipelined-tree", "ring", "torus", "tree",
)  # fmt: skip


def lose(transport: Transport, name: str) -> tuple[str, float]:
    """The last rank never starts the second reduction; returns the error of the other ranks, and its time."""
    reduction = find_reduction(name, Context(transport))
    reduction.start(Bucket(torch.ones(1000))).wait()
    if transport.rank == transport.size - 1:
        return "", 0.0
    started_s = time.monotonic()
    try:
        reduction.start(Bucket(torch.ones(1000), number=3), step=12).wait()
    except LostPeer as error:
        return str(error), time.monotonic() - started_s
    return "no error", 0.0


def lose_in_a_group(transport: Transport, name: str) -> str:
    """Rank 1 is silent; the error of rank 3, which is in a group with it."""
    groups = [transport.subgroup(ranks) for ranks in ((0, 2), (1, 3))]
    reduction = find_reduction(name, Context(next(group for group in groups if group is not None)))
    if transport.rank != 3:
        return ""
    try:
        reduction.start(Bucket(torch.ones(1000))).wait()
    except LostPeer as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("name", ["ring", "native", "top-k"])
def test_a_rank_of_a_group_is_named_by_its_number_in_the_run(name: str) -> None:
    text = on_ranks(4, lose_in_a_group, name, timeout_s=1)[3]
    assert text.startswith("rank 3") and "did not complete" in text


@pytest.mark.parametrize("name", [*PLANS, "native", *HOROVOD])
def test_a_silent_rank_is_an_error_within_the_limit(name: str) -> None:
    text, seconds = on_ranks(2, lose, name, timeout_s=1)[0]
    assert "rank 0" in text and "did not complete" in text and "step 12, bucket 3" in text
    if name in PLANS:
        assert "rank 0 lost rank 1" in text and name in text and "transfer" in text and "1 -> 0" in text
    assert seconds < 10


def die(transport: Transport, name: str) -> tuple[str, float]:
    """The last rank is killed while buffers are under way; returns the error of the other ranks, and its time."""
    reduction = find_reduction(name, Context(transport))
    buckets = [Bucket(torch.ones(1 << 18), number) for number in range(10)]
    started_s = time.monotonic()
    try:
        for step in range(1000):
            under_way = []
            for bucket in buckets:
                if transport.rank == transport.size - 1 and step == 1 and bucket.number == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
                under_way.append(reduction.start(bucket, step))
            for pending in under_way:
                pending.wait()
            started_s = time.monotonic()
    except LostPeer as error:
        return str(error), time.monotonic() - started_s
    return "no error", 0.0


@pytest.mark.parametrize("name", [*PLANS, "native", *HOROVOD])
def test_a_rank_killed_in_the_middle_ends_all_others(name: str) -> None:
    limit_s = 5
    *others, dead = on_ranks(4, die, name, nodes=2, timeout_s=limit_s, doomed=3)
    assert dead is None
    for rank, (text, seconds) in enumerate(others):
        assert f"rank {rank}" in text and "did not complete" in text and "step 1, bucket" in text, text
        assert seconds < limit_s + 10
        if name in PLANS:
            assert f"rank {rank} lost rank" in text and "transfer" in text
