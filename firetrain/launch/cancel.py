"""Cancel a run."""

from __future__ import annotations

from firetrain.errors import UserError
from firetrain.launch import slurm
from firetrain.launch.status import State, jobs_of, state_of, waiting_jobs_of
from firetrain.records import CANCELLED, RUNNING, Run
from firetrain.records.lock import is_held
from firetrain.records.user_command import command_of


def cancel(run: Run, now: bool) -> State:
    """Ask the ranks to save and exit; returns the run's state, with a message about it.

    Slurm cancels the jobs if `now` is set or they have not started. UserError if `now` is set and the run has no job.
    """
    state = state_of(run)
    if state.ended:
        return State(state.word, f"{run.name} was already {state.text.partition(';')[0].partition(':')[0]}")
    has_jobs = bool(jobs_of(run) or waiting_jobs_of(run))
    if not has_jobs or is_held(run):
        if now:
            raise UserError(
                f"--now is only for Slurm jobs; {run.name} runs without Slurm: press Ctrl-C twice where it was started"
            )
        if has_jobs:  # one may wait for the lock
            run.cancel_mark.touch()
        run.stop_mark.touch()
        return State(state.word, f"{run.name}: {_asked(run)}")
    run.cancel_mark.touch()
    if state.word == RUNNING and not now:
        run.stop_mark.touch()
        waiting = [job.id for job in state.jobs if job.state == "PENDING"]
        for number in waiting:
            slurm.cancel(number)
        return State(state.word, f"{run.name}: {_asked(run)} (--now: exit immediately)")
    for job in state.jobs:
        if job.state not in slurm.ENDED:
            slurm.cancel(job.id)
    run.update(state=CANCELLED)
    return State(CANCELLED, f"{run.name}: cancelled")


def _asked(run: Run) -> str:
    """What follows for the ranks when the mark has been set."""
    if command_of(run) is not None:
        return "asked the command to stop, by the file that FIRETRAIN_STOP names"
    return "the ranks will save a checkpoint and exit within a few steps"
