"""Wait for the end of a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from firetrain.errors import FiretrainError
from firetrain.launch.slurm import exit_code
from firetrain.launch.status import state_of
from firetrain.launch.tail import Tail
from firetrain.records import CANCELLED, COMPLETED, Run

_LOG_EVERY_S = 0.5


def failed(run: Run) -> FiretrainError:
    """The error that says how a run has ended that is not complete. Its exit code is that of the last job, if that has failed."""
    state = state_of(run)
    error = FiretrainError("\n".join(filter(None, [f"{run.name}: {state.text}", state.failure])))
    of_the_job = state.word != CANCELLED and state.jobs and state.jobs[-1].state == "FAILED"
    if of_the_job and (code := exit_code(state.jobs[-1].id)):
        error.exit_code = code
    return error


def wait_for(run: Run, poll_every_s: float, show: Callable[[str], Any] | None = None) -> bool:
    """Wait until the run has ended; returns whether it is complete. `show` gets rank 0's log line by line."""
    seen = Tail(run, 0)
    asked_s = -poll_every_s
    while True:
        for line in seen.new():
            if show:
                show(line)
        if run.summary() and not show:
            return True
        if time.monotonic() - asked_s >= poll_every_s or run.summary():
            asked_s = time.monotonic()
            state = state_of(run)
            if state.ended:
                for line in seen.new():
                    if show:
                        show(line)
                return state.word == COMPLETED
        time.sleep(_LOG_EVERY_S)
