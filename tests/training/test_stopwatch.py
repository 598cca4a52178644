"""A stopwatch gives every second to the lap, and so to the part, in which it passed."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firetrain.records.parts import BETWEEN_STEPS, COMPUTE, DATA, Part
from firetrain.training.stopwatch import Stopwatch


class HandClock:
    """A clock that a test sets forward."""

    def __init__(self) -> None:
        self.time_s = 100.0

    def now_s(self) -> float:
        return self.time_s

    def date(self) -> datetime:
        return datetime(2026, 1, 2, tzinfo=timezone.utc)


CPU = torch.device("cpu")
parts = st.lists(st.tuples(st.sampled_from([DATA, COMPUTE, BETWEEN_STEPS]), st.integers(0, 1000)), max_size=20)


@given(parts)
def test_parts_sum_to_the_time_since_the_start(laps: list[tuple[Part, int]]) -> None:
    clock = HandClock()
    watch = Stopwatch(CPU, clock)
    clock.time_s += 50  # before the start, so nobody's
    watch.start()
    for part, seconds in laps:
        clock.time_s += seconds
        watch.lap(part)
    expected = {part: sum(seconds for name, seconds in laps if name == part) for part, _ in laps}
    assert watch.totals() == pytest.approx(expected)
    assert watch.totals() == {}


def test_totals_do_not_lose_the_time_until_the_next_lap() -> None:
    clock = HandClock()
    watch = Stopwatch(CPU, clock)
    watch.start()
    clock.time_s += 1
    watch.lap(DATA)
    assert watch.totals() == {DATA: 1.0}
    clock.time_s += 2
    watch.lap(COMPUTE)
    assert watch.totals() == {COMPUTE: 2.0}


def test_starting_again_forgets_the_time_since_the_last_lap_and_keeps_the_laps() -> None:
    clock = HandClock()
    watch = Stopwatch(CPU, clock)
    watch.start()
    clock.time_s += 1
    watch.lap(DATA)
    clock.time_s += 10
    watch.start()
    clock.time_s += 3
    watch.lap(DATA)
    assert watch.totals() == {DATA: 4.0}
