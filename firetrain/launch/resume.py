"""Going on with a run that has ended early."""

from __future__ import annotations

import os
import shlex
from shutil import which

from firetrain.errors import UserError
from firetrain.launch import slurm
from firetrain.records import Run
from firetrain.records.lock import is_held


def refuse_resumption(run: Run) -> None:
    """UserError if a run cannot be gone on with: it is being run, waits in a queue, or is a part or the whole of a comparison."""
    if (run.path / "parts").is_dir() or "round" in run.facts():
        raise UserError(f"{run.name} belongs to a comparison: the command that began it goes on with it")
    if is_held(run):
        raise UserError(f"{run.name} is running already")
    refuse_live_jobs(run)


def refuse_live_jobs(run: Run) -> None:
    """UserError if a job of the run waits, or runs."""
    # where there is no Slurm, a run that was a job is a copy
    jobs = jobs_of(run) if which("squeue") else []
    live = [number for number in jobs if (job := slurm.job(number)) and job.state not in slurm.ENDED]
    if live:
        raise UserError(f"{run.name} has a job in Slurm's hands, {live[-1]}: firetrain cancel {run.name} takes it back")


def jobs_of(run: Run) -> list[int]:
    """The run's jobs, oldest first: those that were submitted for it, and those that `sbatch job.sh` has begun."""
    begun = [path.read_text().strip() for path in run.path.glob("attempt-*/job")]
    return sorted({*run.facts().get("jobs", []), *(int(text) for text in begun if text.isdecimal())})


def resume_command(run: Run) -> str:
    """What goes on with a run, as it can be typed here."""
    return f"firetrain launch --resume {shlex.quote(os.path.relpath(run.path))}"
