"""A process whose GPU waits for a lost rank ends in time, and says what was under way."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import torch

from firetrain.transport.watchdog import Watchdog

HANGS = """
import threading
import torch
from firetrain.transport.watchdog import Watchdog

class Work:
    def __init__(self, completed): self.completed = completed
    def query(self): return self.completed

class Gone:
    def query(self): raise RuntimeError("the process group was destroyed")

watchdog = Watchdog(rank=3, timeout_s=1.0, device=torch.device("cpu"))
watchdog.watch(Work(True), lambda: "bucket 0")
watchdog.watch(Gone(), lambda: "a bucket of a group that is gone")
watchdog.watch(Work(False), lambda: "step 7, bucket 1: ring, wave 2, transfers [4, 5]")
watchdog.watch(Work(True), lambda: "bucket 2")
threading.Event().wait(60)  # as a rank waits for its GPU
"""


HOST_HANGS = """
import threading
import torch
from firetrain.transport.watchdog import Watchdog

watchdog = Watchdog(rank=1, timeout_s=1.0, device=torch.device("cpu"))
with watchdog.during("a broadcast from rank 0"):
    pass  # this one ends
with watchdog.during("a gather over all ranks"):
    threading.Event().wait(60)
"""


class Later:
    """Completes when the test says so."""

    def __init__(self) -> None:
        self.completed = threading.Event()

    def query(self) -> bool:
        return self.completed.is_set()


def test_the_step_the_bucket_and_the_transfers_are_named_and_the_exit_code_is_that_of_a_lost_rank() -> None:
    began_s = time.monotonic()
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 69
    assert done.stderr == (
        "firetrain: rank 3: step 7, bucket 1: ring, wave 2, transfers [4, 5] did not complete within 0.9 s, because another "
        "rank died or stopped responding\n"
    )
    assert time.monotonic() - began_s < 30


def test_what_the_host_waits_for_is_named_too() -> None:
    done = subprocess.run([sys.executable, "-c", HOST_HANGS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 69
    assert done.stderr.startswith("firetrain: rank 1: a gather over all ranks did not complete within 0.9 s")


def test_work_that_completes_in_time_is_forgotten() -> None:
    watchdog = Watchdog(rank=0, timeout_s=3.0, device=torch.device("cpu"))
    pending = [Later() for _ in range(3)]
    for work in pending:
        watchdog.watch(work, lambda: "never asked for")
    began_s = time.monotonic()
    for work in pending:
        work.completed.set()
    while watchdog.under_way and time.monotonic() - began_s < 30:
        time.sleep(0.01)
    assert watchdog.under_way == 0
    watchdog.close()
    assert "firetrain-watchdog" not in [thread.name for thread in threading.enumerate()]
