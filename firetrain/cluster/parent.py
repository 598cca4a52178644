"""Processes that end with the process that started them."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress

# set by firetrain's launcher: its process number
LAUNCHER = "FIRETRAIN_LAUNCHER"
_PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals) -> None:
    """On Linux: send this process the signal `number` when its parent ends, even if the parent is killed. Elsewhere a no-op."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def end_with_launcher() -> None:
    """In a rank that firetrain's launcher has started: end with the launcher, even if it has been killed already."""
    launcher = os.environ.pop(LAUNCHER, None)
    if launcher is None:
        return
    end_with_parent(signal.SIGTERM)
    if launcher != str(os.getppid()):
        os.kill(os.getpid(), signal.SIGTERM)
