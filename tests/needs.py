"""Requirements of tests besides Python."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

# Horovod, if installed, is included in the tests of all reductions; tests/reduction/test_horovod.py says if it is not
HOROVOD = ("horovod",) if find_spec("horovod") else ()


def need(missing: str | None) -> None:
    """Skip a test for this reason; where no test may be skipped, fail instead."""
    if missing and os.environ.get("FIRETRAIN_NO_SKIPS"):
        pytest.fail(f"cannot run here: {missing}")
    if missing:
        pytest.skip(missing)
