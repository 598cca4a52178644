"""Exchanges between ranks of which one dies."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import torch
from ranks import on_ranks

from firetrain.errors import LostPeer
from firetrain.parallel.exchange import Exchanger
from firetrain.strategy.region import NOTHING, Region
from firetrain.transport.transport import Transport

WHOLE = Region(0, 2, 0, 3)


def post_after_death(transport: Transport) -> str:
    """Rank 1 sends its activation once, and is killed; the error of rank 0, which expects it in every pass."""
    exchanger = Exchanger(transport)
    with exchanger.passing("forward"):
        exchanger.move(torch.ones(2, 3), [NOTHING, WHOLE], [WHOLE, NOTHING], 7, "the input of fc6")
    exchanger.settle()
    with suppress(LostPeer):  # rank 1 may be killed before its last message has arrived
        transport.barrier()
    if transport.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    deadline = time.monotonic() + 30
    try:
        while time.monotonic() < deadline:
            with exchanger.passing("forward"):
                pass
    except LostPeer as error:
        return str(error)
    return "no error"


def test_a_rank_that_is_found_dead_before_a_pass_begins_is_a_lost_peer() -> None:
    text, _ = on_ranks(2, post_after_death, doomed=1)
    assert text.startswith("rank 0: the receives of the next pass did not complete, because another rank died"), text
