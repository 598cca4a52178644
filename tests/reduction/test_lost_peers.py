"""A rank that is gone or silent becomes an error that says what was waited for, within the limit."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
from ranks import on_ranks

from firetrain.errors import LostPeer
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.interface import Bucket
from firetrain.reduction.transport import Transport
from firetrain.reduction.wiring import Wiring


def lose(transport: Transport, name: str, how: str) -> tuple[str, float]:
    """The last rank leaves in the middle of things; what the others are told, and when."""
    reduction = find_reduction(name, Wiring(transport))
    reduction.start(Bucket(torch.ones(1000))).wait()
    if transport.rank == transport.size - 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return "", 0.0  # silent: alive, but never starts the next reduction
    started_s = time.monotonic()
    try:
        reduction.start(Bucket(torch.ones(1000), number=3), step=12).wait()
    except LostPeer as error:
        return str(error), time.monotonic() - started_s
    return "no error", 0.0


@pytest.mark.parametrize("name", ["ring", "tree", "hierarchical", "parameter-server", "native"])
def test_a_silent_rank_is_an_error_within_the_limit(name: str) -> None:
    first = on_ranks(2, lose, name, "silent", timeout_s=2)[0]
    text, seconds = first
    assert "rank 0" in text and "did not complete" in text
    if name != "native":
        assert name in text and "transfer" in text and "1 -> 0" in text
    assert seconds < 10


@pytest.mark.parametrize("name", ["tree", "native"])
def test_a_killed_rank_is_an_error_at_once(name: str) -> None:
    with pytest.raises(AssertionError, match="rank 1 died without a word"):
        on_ranks(2, lose, name, "killed", timeout_s=20)
