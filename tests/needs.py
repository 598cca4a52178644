"""What a test needs beside Python."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

# what every reduction is held to, Horovod is too, where it is installed; tests/reduction/test_horovod.py says if it is not
HOROVOD = ("horovod",) if find_spec("horovod") else ()


def need(missing: str | None) -> None:
    """Skip a test with the reason why it cannot run here; where everything must run, that is a failure."""
    if missing and os.environ.get("FIRETRAIN_NO_SKIPS"):
        pytest.fail(f"cannot run here: {missing}")
    if missing:
        pytest.skip(missing)
