"""Check whether an interrupted run can be resumed."""

from __future__ import annotations

import os
from pathlib import Path
from shutil import which

from firetrain.errors import UserError
from firetrain.launch import slurm
from firetrain.records import Run
from firetrain.records.lock import is_held


def refuse_resumption(run: Run) -> None:
    """UserError if a run cannot be resumed, because it is running, queued, or part of a comparison."""
    if (run.path / "parts").is_dir() or "round" in run.facts():
        raise UserError(f"{run.name} is part of a comparison: repeat the `firetrain compare` command to resume it")
    if is_held(run):
        raise UserError(f"{run.name} is running already")
    refuse_live_jobs(run)


def refuse_live_jobs(run: Run) -> None:
    """UserError if a job of the run is queued or running."""
    # without Slurm on this machine, the folder is a copy of a job's run
    jobs = jobs_of(run) if which("squeue") else []
    live = [number for number in jobs if (job := slurm.job(number)) and job.state not in slurm.ENDED]
    if live:
        raise UserError(f"{run.name} still has Slurm job {live[-1]}: cancel it first ({run.cancel_command})")


def jobs_of(run: Run) -> list[int]:
    """The jobs of the run, oldest first: those that firetrain submitted, and those started by `sbatch job.sh`."""
    begun = [path.read_text().strip() for path in run.path.glob("attempt-*/job")]
    return sorted({*run.facts().get("jobs", []), *(int(text) for text in begun if text.isdecimal())})


def resume_command(run: Run) -> str:
    """The command that resumes the run, with a path relative to the current folder."""
    return Run(Path(os.path.relpath(run.path))).resume_command
