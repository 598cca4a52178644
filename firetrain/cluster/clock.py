"""A clock for durations and dates, which tests can replace."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Protocol


class Clock(Protocol):
    """A source of durations and dates.

    >>> class Frozen:
    ...     def now_s(self) -> float:
    ...         return 0.0
    ...
    ...     def date(self) -> datetime:
    ...         return datetime(2026, 1, 2, tzinfo=timezone.utc)
    >>> clock: Clock = Frozen()
    """

    def now_s(self) -> float:
        """Seconds since an arbitrary start; never goes backwards."""

    def date(self) -> datetime:
        """The date and time in UTC."""


class SystemClock:
    """The machine's own clock.

    >>> clock = SystemClock()
    >>> began_s = clock.now_s()
    >>> clock.now_s() >= began_s
    True
    """

    def now_s(self) -> float:
        """Seconds of the monotonic clock, which is the same for all processes of a machine."""
        return time.monotonic()

    def date(self) -> datetime:
        """The current date and time in UTC."""
        return datetime.now(timezone.utc)


def duration(seconds: float) -> str:
    """Seconds as readable text: 45 s, 12 min, 3 h 20 min.

    >>> duration(12000)
    '3 h 20 min'
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
