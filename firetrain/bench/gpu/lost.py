"""Checks that a rank whose peer has died ends soon and says so, on the transport of this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import torch

from firetrain.bench.gpu.ranks import on_ranks_sharing
from firetrain.bench.gpu.staged import make_reduction
from firetrain.errors import FiretrainError, LostPeer
from firetrain.reduction.context import Context
from firetrain.reduction.interface import Bucket
from firetrain.transport.device import synchronize
from firetrain.transport.transport import Transport

_TIMEOUT_S = 10.0
_ELEMENTS = 1 << 16


def verify(device: torch.device) -> Iterator[tuple[str, Any]]:
    """How rank 0 ended after rank 1 had died; FiretrainError if it did not end as a rank that lost its peer."""
    library, found = on_ranks_sharing(_cases, device, 2, timeout_s=_TIMEOUT_S)
    told = str(found[0].get("error", "went on"))
    yield "transport", library
    yield "rank 0", told.splitlines()[-1]
    # over NCCL the watchdog ends the process, with a line on stderr; or torch's own does, if NCCL noticed a closed connection
    ends = (LostPeer.__name__, f"exit code {LostPeer.exit_code}", f"exit code {-signal.SIGABRT}")
    if not any(end in told for end in ends):
        raise FiretrainError(f"rank 0 did not notice that rank 1 had died: {told}")


def _cases(transport: Transport) -> Iterator[tuple[str, Any]]:
    reduction = make_reduction("ring", Context(transport))
    bucket = Bucket(torch.ones(_ELEMENTS, device=transport.device))
    reduction.prepare([bucket])
    reduction.start(bucket).wait()
    synchronize(transport.device)
    yield "a sum", float(bucket.buffer[0])
    if transport.rank == 1:
        os._exit(0)
    reduction.start(bucket, step=1).wait()
    synchronize(transport.device)
    yield "another sum", float(bucket.buffer[0])
