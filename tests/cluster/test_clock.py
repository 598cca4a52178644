"""Durations as text, and a clock that does not go backwards."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from firetrain.cluster import SystemClock, duration


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (0.4, "0 s"), (45.6, "46 s"), (89.4, "89 s"), (90, "2 min"), (719, "12 min"), (5369, "89 min"),
     (5400, "1 h 30 min"), (12000, "3 h 20 min"), (86400 * 3, "72 h 0 min")],
)  # fmt: skip
def test_a_duration_is_told_in_the_unit_that_it_is_read_in(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_the_system_s_clock_goes_forward_and_its_date_is_utc() -> None:
    clock = SystemClock()
    readings = [clock.now_s() for _ in range(100)]
    assert readings == sorted(readings)
    assert clock.date().utcoffset() == timedelta(0)
    assert abs(clock.date() - datetime.now(timezone.utc)) < timedelta(minutes=1)
