"""Turns errors of torch.distributed and of sockets into LostPeer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from firetrain.errors import FiretrainError, LostPeer, out_of_memory

# texts in errors of NCCL that were not caused by another rank
_REFUSED = ("ncclInvalidUsage", "ncclInvalidArgument", "Duplicate GPU")
_OWN_FAILURE = "ncclUnhandledCudaError"
# errors of this rank's own GPU, in newer versions of torch
_OWN = getattr(torch, "AcceleratorError", torch.OutOfMemoryError)


class lost_peers:  # noqa: N801 reads as a statement: with lost_peers(...)
    """Context manager: turn errors of torch.distributed and of sockets into LostPeer.

    The message says what this rank was waiting for; `waiting_for` may be a function, which is called only for the message.
    """

    def __init__(self, rank: int, waiting_for: str | Callable[[], str]) -> None:
        self._rank, self._waiting_for = rank, waiting_for

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Raise LostPeer instead of a RuntimeError or an OSError, unless this rank itself caused the error.

        Errors of this rank's own GPU or memory are not changed. A refusal by NCCL, or its failure on this
        rank's GPU, becomes a FiretrainError with NCCL's text.
        """
        if not isinstance(error, RuntimeError | OSError) or isinstance(error, _OWN) or out_of_memory(error):
            return
        lines = str(error).splitlines() or [type(error).__name__]
        if any(word in str(error) for word in (*_REFUSED, _OWN_FAILURE)):
            what = "NCCL failed on the GPU of this rank" if _OWN_FAILURE in str(error) else "NCCL refuses these ranks"
            raise FiretrainError(f"rank {self._rank}: {what}: {' '.join(lines[1:] or lines)}") from error
        # NCCL says what it is in the lines after the first: no such interface, too little shared memory
        what = self._waiting_for if isinstance(self._waiting_for, str) else self._waiting_for()
        raise LostPeer(
            f"rank {self._rank}: {what} did not complete, because another rank died or stopped responding: "
            f"{' '.join(lines) if 'NCCL' in lines[0] else lines[0]}"
        ) from error
