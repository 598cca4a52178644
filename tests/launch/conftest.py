"""Fixtures that start launches and end them with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launched import Launch


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    started: list[Launch] = []

    def start(*arguments: str) -> Launch:
        started.append(Launch(tmp_path, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.kill()
