"""Detection of busy processors."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import torch

from firetrain.bench.busy import Busy
from firetrain.cluster import Identity, World
from firetrain.transport.transport import Transport


def test_processors_that_compute_are_busy_and_what_is_too_short_is_not_told() -> None:
    alone = Transport("gloo", Identity(), World.even(1, 1), torch.device("cpu"), 1.0)
    spin = "import time; until = time.monotonic() + 1.5\nwhile time.monotonic() < until: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(os.cpu_count() or 1)]
    busy, blink = Busy(), Busy()
    with busy:
        for process in spinning:
            process.wait()
    share = busy.of_busiest(alone)
    assert share is not None and 0.6 < share <= 1
    with blink:
        time.perf_counter()
    assert blink.of_busiest(alone) is None
