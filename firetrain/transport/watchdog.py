"""Ends a process whose work on the GPU does not complete, because NCCL waits for lost ranks without an error."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

from firetrain.errors import LostPeer

_POLL_S = 0.2
# NCCL's own watchdog ends the process after the full limit, but cannot name the step, the bucket and the transfers
_EARLIER = 0.9


class Mark(Protocol):
    """A point in the work of a GPU, such as a torch.cuda.Event."""

    def query(self) -> bool:
        """Whether all work before this point has completed."""


class _Watched(NamedTuple):
    mark: Mark
    describe: Callable[[], str]
    since_s: float


class Watchdog:
    """Watches marks in the order in which they were issued, in a thread that starts with the first one.

    If a mark does not complete within nine tenths of `timeout_s`, the process prints what `describe` says and ends with the exit
    code of LostPeer. It cannot raise instead: the rank's main thread waits for the GPU, which waits for the lost rank.
    """

    def __init__(self, rank: int, timeout_s: float) -> None:
        self._rank, self._limit_s = rank, _EARLIER * timeout_s
        self._watched: deque[_Watched] = deque()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, mark: Mark, describe: Callable[[], str]) -> None:
        """Watch `mark`; `describe` returns what was under way, and is called only if it does not complete."""
        self._watched.append(_Watched(mark, describe, time.monotonic()))
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="firetrain-watchdog", daemon=True)
            self._thread.start()

    @property
    def under_way(self) -> int:
        """The number of marks that have not completed yet, as far as is known."""
        return len(self._watched)

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        while not self._closed.wait(_POLL_S):
            while self._watched and self._watched[0].mark.query():
                self._watched.popleft()
            if self._watched and time.monotonic() - self._watched[0].since_s > self._limit_s:
                self._end(self._watched[0].describe())

    def _end(self, what: str) -> None:
        with suppress(OSError):
            print(
                f"firetrain: rank {self._rank}: {what} did not complete within {self._limit_s:g} s, because another rank died "
                "or stopped responding",
                file=sys.stderr,
                flush=True,
            )
        os._exit(LostPeer.exit_code)
