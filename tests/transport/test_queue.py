"""Jobs run in the order in which they were started, whichever is waited for first."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from firetrain.transport.queue import Queue


@pytest.fixture
def queue() -> Iterator[Queue]:
    found = Queue()
    yield found
    found.close()


@pytest.mark.parametrize("small", [[False] * 6, [True] * 6, [True, False, True, True, False, True]])
@pytest.mark.parametrize("first", [0, 3, 5])
def test_jobs_run_in_the_order_of_their_start(queue: Queue, small: list[bool], first: int) -> None:
    done: list[int] = []
    jobs = [queue.start(lambda number=number: done.append(number), flag) for number, flag in enumerate(small)]  # type: ignore[misc]
    jobs[first].wait()
    assert done[: first + 1] == list(range(first + 1))
    for job in jobs:
        job.wait()
        job.wait()  # a second call does nothing
    assert done == list(range(6))


def test_a_small_job_that_nobody_follows_runs_in_the_thread_that_waits(queue: Queue) -> None:
    threads: list[str] = []

    def note() -> None:
        threads.append(threading.current_thread().name)

    queue.start(note, small=True).wait()
    queue.start(note, small=False).wait()
    followed = queue.start(note, small=True)
    queue.start(note, small=True).wait()
    followed.wait()
    main = threading.current_thread().name
    assert threads[0] == main and threads[1] != main and threads[2] != main and threads[3] == main


@pytest.mark.parametrize("small", [True, False])
def test_an_error_is_raised_by_every_wait_and_no_job_runs_after_it(queue: Queue, small: bool) -> None:
    def fail() -> None:
        raise OSError("lost")

    done: list[str] = []
    failing, following = queue.start(fail, small), queue.start(lambda: done.append("next"), small)
    for _ in range(2):
        with pytest.raises(OSError, match="lost"):
            failing.wait()
    with pytest.raises(OSError, match="lost"):  # other ranks may wait in the middle of the failed job
        following.wait()
    assert done == []
