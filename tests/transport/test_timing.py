"""Work is timed on the rank that takes longest, and nodes of tests have their share of the processors and no more."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from needs import need
from ranks import on_ranks

sys.path.append(str(Path(__file__).parents[2] / "slurm"))

from processors import Share

from firetrain.transport.timing import elapsed_s, slowest_s
from firetrain.transport.transport import Transport

CPU = torch.device("cpu")
# computes for a second of wall time, and prints the seconds of processor time that it got
BUSY = """
import time
until = time.monotonic() + 1
while time.monotonic() < until:
    pass
print(time.process_time())
"""


def waiting(transport: Transport) -> tuple[float, int]:
    """(seconds of a call that takes 30 ms on rank 1 and no time on rank 0, number of calls)."""
    calls = []

    def run() -> None:
        calls.append(0)
        time.sleep(0.03 * transport.rank)

    return slowest_s(transport, run, calls=3), len(calls)


def test_all_ranks_get_the_seconds_of_the_slowest() -> None:
    (first_s, calls), (second_s, _) = on_ranks(2, waiting)
    assert first_s == second_s and 0.03 <= first_s < 0.3 and calls == 3


def test_the_time_of_several_calls_is_that_of_one() -> None:
    assert 0.01 <= elapsed_s(CPU, lambda: time.sleep(0.01), calls=4) < 0.1


@pytest.fixture
def half() -> Iterator[Share]:
    need(None if os.geteuid() == 0 else "control groups need root")
    if not Share.exists():
        pytest.skip("this machine has no control groups that can be limited")
    with Share(f"firetrain-test-{os.getpid()}", cpus=0.5) as share:
        yield share


def test_a_process_computes_for_its_share_of_the_time(half: Share) -> None:
    done = subprocess.run([*half.enter, sys.executable, "-c", BUSY], capture_output=True, text=True, check=True)
    assert 0.1 < float(done.stdout) < 0.65


def test_a_share_is_gone_when_its_processes_are(half: Share) -> None:
    assert half.path.is_dir()
    done = subprocess.run([*half.enter, "cat", "/proc/self/cgroup"], capture_output=True, text=True, check=True)
    assert half.path.name in done.stdout
