"""Ends a process whose work on the GPU does not complete, because NCCL waits for lost ranks without an error."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist

from firetrain.errors import LostPeer
from firetrain.transport.device import use_in_this_thread

_POLL_S = 0.2
# NCCL's own watchdog ends the process after the full limit, but cannot name the step, the bucket and the transfers
_EARLIER = 0.9


class GpuWork(Protocol):
    """Work that a GPU has been given, up to some point; for example a torch.cuda.Event at that point."""

    def query(self) -> bool:
        """Whether this work has completed."""


class Collective:
    """A collective of torch.distributed as work of the GPU."""

    def __init__(self, work: dist.Work) -> None:
        self._work = work

    def query(self) -> bool:
        """Whether the device has completed it."""
        return bool(self._work.is_completed())


class _HostWaits:
    """A wait of the host, as work; it is complete when the wait is over."""

    def __init__(self) -> None:
        self.is_over = False

    def query(self) -> bool:
        return self.is_over


class _Watched(NamedTuple):
    work: GpuWork
    describe: Callable[[], str]
    since_s: float


class Watchdog:
    """Watches issued work in the order in which it was issued, in a thread that starts with the first one.

    If some of it does not complete within nine tenths of `timeout_s`, the process prints what `describe` says and ends with the
    exit code of LostPeer. It cannot raise instead: the rank's main thread waits for the GPU, which waits for the lost rank.
    """

    def __init__(self, rank: int, timeout_s: float, device: torch.device) -> None:
        self._rank, self._limit_s, self._device = rank, _EARLIER * timeout_s, device
        self._watched: deque[_Watched] = deque()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, work: GpuWork, describe: Callable[[], str]) -> None:
        """Watch `work`; `describe` returns what was under way, and is called only if it does not complete."""
        self._watched.append(_Watched(work, describe, time.monotonic()))
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="firetrain-watchdog", daemon=True)
            self._thread.start()

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Context manager: watch something for which the host itself waits, such as a collective of Python objects."""
        waiting = _HostWaits()
        self.watch(waiting, lambda: what)
        try:
            yield
        finally:
            waiting.is_over = True

    @property
    def under_way(self) -> int:
        """The number of watched pieces of work that have not completed yet, as far as is known."""
        return len(self._watched)

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        use_in_this_thread(self._device)
        while not self._closed.wait(_POLL_S):
            while self._watched and _is_over(self._watched[0].work):
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


def _is_over(work: GpuWork) -> bool:
    """Whether the work is done, or cannot be asked any more: its group is gone, or the GPU failed, which its rank reports."""
    try:
        return work.query()
    except RuntimeError:
        return True
