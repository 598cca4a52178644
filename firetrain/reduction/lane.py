"""Buckets are reduced one after another, in the order in which they were started, beside backward."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor


class Lane:
    """A thread and the order of what it does. All ranks start the same in the same order."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reduction")
        self._latest: Turn | None = None

    def start(self, run: Callable[[], None], small: bool) -> Turn:
        """Queue `run`. A `small` one that nobody follows waits for its `wait`, which saves waking the thread."""
        if self._latest is not None:
            self._latest.submit()
        turn = self._latest = Turn(self._thread, run, self._latest)
        if not small:
            turn.submit()
        return turn

    def close(self) -> None:
        """End the thread; what is still queued is dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class Turn:
    """The place of one bucket in a lane."""

    def __init__(self, thread: Executor, run: Callable[[], None], before: Turn | None) -> None:
        self._thread, self._run = thread, run
        self._before = before
        self._future: Future[None] | None = None

    def submit(self) -> None:
        """Leave it to the thread."""
        if self._future is None:
            self._before, self._future = None, self._thread.submit(self._run)

    def wait(self) -> None:
        """Until it is done; raises what went wrong."""
        if self._future is None:
            if self._before is not None:
                self._before.wait()
            self._before, self._future = None, Future()
            try:
                self._future.set_result(self._run())
            except BaseException as error:
                self._future.set_exception(error)
        self._future.result()
