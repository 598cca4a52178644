"""A thread that runs jobs in order, such as sums of gradients during the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial


class Queue:
    """A thread that runs jobs in order. All ranks must start the same jobs in the same order.

    After an error no other job runs, because other ranks may wait in the middle of the one that failed: all raise this error.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="queue")
        self._latest: Job | None = None
        self._error: BaseException | None = None

    def start(self, run: Callable[[], None], small: bool) -> Job:
        """Append `run` to the queue.

        Small jobs run in the caller's thread on `wait()`, unless another job is queued behind them; this avoids a thread
        wake-up.
        """
        if self._latest is not None:
            self._latest.submit()
        job = self._latest = Job(self._thread, partial(self._run, run), self._latest)
        if not small:
            job.submit()
        return job

    def _run(self, run: Callable[[], None]) -> None:
        if self._error is not None:
            raise self._error
        try:
            run()
        except BaseException as error:
            self._error = error
            raise

    def close(self) -> None:
        """End the thread, and drop jobs that have not started."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class Job:
    """A function call in a queue, which reduces one bucket."""

    def __init__(self, thread: Executor, run: Callable[[], None], before: Job | None) -> None:
        self._thread, self._run = thread, run
        self._before = before
        self._future: Future[None] | None = None

    def submit(self) -> None:
        """Pass the job to the thread."""
        if self._future is None:
            self._before, self._future = None, self._thread.submit(self._run)

    def wait(self) -> None:
        """Wait until the job is done; raises the job's error, if there was one."""
        if self._future is None:
            if self._before is not None:
                self._before.wait()
            self._before, self._future = None, Future()
            try:
                self._future.set_result(self._run())
            except BaseException as error:
                self._future.set_exception(error)
        self._future.result()
