"""The lock of a run, held by a launcher and its ranks, and released by the system when the last of them exits."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from firetrain.errors import CannotWrite, UserError
from firetrain.records.file import cannot_write
from firetrain.records.run import RUNNING, Run

NAME = "lock"
_WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextmanager
def held(run: Run) -> Iterator[int]:
    """Context manager: hold the lock. Yields a file descriptor for the ranks to inherit, which then hold the lock too.

    The lock is of flock(2), so nothing has to be cleaned up after a launcher was killed. UserError if another process holds it.
    """
    with cannot_write(run.path / NAME):
        number = os.open(run.path / NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # CIFS says the second
            raise UserError(
                f"{run.name} is running already: end it first ({run.cancel_command}, or Ctrl-C where it was started)"
            ) from None
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise CannotWrite(f"cannot lock {run.path / NAME}: {error.strerror}") from None
            print(
                f"note: {run.path / NAME}: this file system has no locks ({error.strerror}), so that a second launch of the run "
                "would not be refused",
                file=sys.stderr,
            )
        yield number
    finally:
        os.close(number)


def is_interrupted(run: Run, facts: Mapping[str, Any]) -> bool:
    """Whether its record, `facts`, says that the run is running, and nothing of it runs on this machine, where it was started."""
    here = facts.get("machine", {}).get("host") == socket.gethostname()
    return facts.get("state") == RUNNING and here and (run.path / NAME).exists() and not is_held(run)


def is_held(run: Run) -> bool:
    """Whether the run is running, as far as locks on this file system show."""
    try:
        number = os.open(run.path / NAME, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:  # such a file system has no locks
        return False
    finally:
        os.close(number)
    return False
