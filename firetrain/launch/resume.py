"""Check whether an interrupted run can be resumed, and change how it computes."""

from __future__ import annotations

from collections.abc import Sequence
from shutil import which
from typing import Any

from firetrain.config import Loaded, load_config
from firetrain.config.files import exists, is_folder, read_regular
from firetrain.errors import FiretrainError, UserError
from firetrain.launch import slurm
from firetrain.records import Run
from firetrain.records.lock import is_held
from firetrain.records.saved import read_saved, saved_in, step_of

# sections that a resumed run may change, because they say how the same losses are computed
_CHANGEABLE = ("strategy", "reduction")


def changed(run: Run, overrides: Sequence[str]) -> Loaded:
    """The run's config with other settings of its strategy or reduction. UserError for other settings."""
    for text in overrides:
        if text.partition(".")[0].strip() not in _CHANGEABLE:
            raise UserError(
                f"--set {text}: a resumed run can change only its strategy and reduction; to change other settings, start a new "
                f"run from {run.from_here().config_path}"
            )
    return load_config(str(run.config_path), overrides) if overrides else run.loaded()


def change(run: Run, loaded: Loaded, overrides: Sequence[str]) -> None:
    """Replace the run's config, and name the change as the run's arm, so that reports do not count it with others."""
    if overrides:
        before = run.facts().get("arm")
        run.replace_config(loaded)
        run.update(arm=" ".join(filter(None, [before, f"resumed with {' '.join(overrides)}"])))


def asked_before(run: Run, given: dict[str, Any]) -> dict[str, Any]:
    """The options `given` for a job, and those with which the run was submitted where none is given now."""
    return {key: given[key] or before for key, before in {**given, **run.facts().get("asked", {})}.items()}


def refuse_resumption(run: Run) -> None:
    """UserError if a run cannot be resumed: it is running, queued, or part of a comparison, or its metrics are damaged."""
    if run.is_allocation or "repeat" in run.facts():
        raise UserError(f"{run.name} is part of a comparison: repeat the `firetrain compare` command to resume it")
    if is_held(run):
        raise UserError(f"{run.name} is running already")
    refuse_live_jobs(run)
    run.metrics()
    folder = run.path / "checkpoints"
    if (folder.is_symlink() or exists(folder)) and not is_folder(folder):
        raise UserError(f"{folder} is not a folder: move it away, and the run starts again at step 0")


def where_it_goes_on(run: Run) -> str:
    """Where a resumed run goes on, in words, and which checkpoints it has to skip."""
    skipped = []
    for path in reversed(saved_in(run.path / "checkpoints")):
        try:
            read_saved(path)
        except FiretrainError as error:
            skipped.append(f"skipped checkpoint: {error}\n")
        else:
            return f"{''.join(skipped)}resumes after step {step_of(path)}"
    return f"{''.join(skipped)}starts again at step 0: there is no readable checkpoint"


def refuse_live_jobs(run: Run) -> None:
    """UserError if a job of the run is queued or running."""
    # without Slurm on this machine, the folder is a copy of a job's run
    jobs = jobs_of(run) if which("squeue") else []
    live = [number for number in jobs if (job := slurm.job(number)) and job.state not in slurm.ENDED]
    if live:
        raise UserError(f"{run.name} still has Slurm job {live[-1]}: cancel it first ({run.cancel_command})")


def jobs_of(run: Run) -> list[int]:
    """The jobs of the run, oldest first: those that firetrain submitted, and those started by `sbatch job.sh`."""
    begun = [read_regular(path).decode(errors="replace").strip() for path in run.path.glob("attempt-*/job")]
    return sorted({*run.facts().get("jobs", []), *(int(text) for text in begun if text.isdecimal())})
