"""Time: one clock for durations, one for dates, both of which a test can replace."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Protocol


class Clock(Protocol):
    """What firetrain asks of time."""

    def now_s(self) -> float:
        """Seconds since an arbitrary start; never goes backwards."""

    def date(self) -> datetime:
        """The date and time in UTC."""


class SystemClock:
    """The machine's own clock."""

    def now_s(self) -> float:
        """Seconds of the monotonic clock, which all processes of one machine share."""
        return time.monotonic()

    def date(self) -> datetime:
        """Now, in UTC."""
        return datetime.now(timezone.utc)


def duration(seconds: float) -> str:
    """Seconds as a person says them: 45 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
