"""Fixtures that start launches and end them with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launched import Launch


@pytest.fixture
def launch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    """Start a launch, of the kind that the module names as `LAUNCH`."""
    kind, started = getattr(request.module, "LAUNCH", Launch), list[Launch]()

    def start(*arguments: str) -> Launch:
        started.append(kind(tmp_path, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.kill()
