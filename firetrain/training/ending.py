"""How a run ends, and what its record says about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from firetrain.cluster import SystemClock
from firetrain.errors import CannotWrite, LostPeer
from firetrain.records import COMPLETED, FAILED, STOPPED, Run
from firetrain.training.stop import Stopped


@contextmanager
def recorded(run: Run, *, first: bool, of_a_trial: bool) -> Iterator[None]:
    """Context manager: train inside it; rank 0 (`first`) records how that ended. Stopped ends the block without an error.

    For trials of a comparison LostPeer is not recorded here; the launcher records which rank failed.
    """
    state, reason = COMPLETED, ""
    try:
        yield
    except Stopped as stop:
        state, reason = STOPPED, str(stop)
    except BaseException as error:
        if first and not (of_a_trial and isinstance(error, LostPeer)):
            run.release()
            with suppress(CannotWrite):  # the launcher then reports it
                _close(run, FAILED, str(error).partition("\n")[0])
        raise
    if first:
        run.release()
        _close(run, state, reason)


def _close(run: Run, state: str, reason: str) -> None:
    run.update(state=state, ended=SystemClock().date().isoformat(), reason=reason)
