"""A run is run by one launcher at a time: a lock that it holds with its ranks, and that the system frees when all have ended."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from firetrain.errors import UserError
from firetrain.records.file import cannot_write
from firetrain.records.run import Run

NAME = "lock"


@contextmanager
def held(run: Run) -> Iterator[int]:
    """Hold the lock; the number is a file descriptor to hand on to the ranks, which hold it as long as they live.

    flock(2): a launcher that was killed leaves nothing to clear up. UserError if somebody else holds it.
    """
    with cannot_write(run.path / NAME):
        number = os.open(run.path / NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{run.name} is running already: end it first (firetrain cancel {run.name}, or Ctrl-C where it was started)"
            ) from None
        yield number
    finally:
        os.close(number)


def is_held(run: Run) -> bool:
    """Whether the run is being run on this machine, or on another that shares its locks."""
    try:
        number = os.open(run.path / NAME, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(number)
    return False
