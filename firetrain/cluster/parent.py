"""Processes that end with the process that started them."""

from __future__ import annotations

import ctypes
import signal
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals) -> None:
    """On Linux: send this process the signal `number` when its parent ends, even if the parent is killed. Elsewhere a no-op."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
