"""Check whether an interrupted run can be resumed, and change how it computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from firetrain.config import Loaded, load_config
from firetrain.config.files import exists, is_folder
from firetrain.errors import FiretrainError, UserError
from firetrain.launch.status import jobs_of, live_job
from firetrain.records import Run
from firetrain.records.lock import is_held
from firetrain.records.own_code import keep_code
from firetrain.records.saved import read_saved, saved_in, step_of

# sections that a resumed run may change, because they say how the same losses are computed; and its length
_CHANGEABLE = ("strategy", "reduction")
_LENGTH = ("target.max_epochs", "target.max_steps")


def changed(run: Run, overrides: Sequence[str]) -> Loaded:
    """The run's config with another strategy, reduction or length. UserError for other settings, or a length already trained."""
    for text in overrides:
        if text.partition(".")[0].strip() not in _CHANGEABLE and not _is_length(text):
            raise UserError(
                f"--set {text}: a resumed run can change only its strategy, its reduction, {' and '.join(_LENGTH)}; to change "
                f"other settings, start a new run from {run.from_here().config_path}"
            )
    loaded = load_config(str(run.config_path), overrides) if overrides else run.loaded()
    if run.summary() and any(map(_is_length, overrides)):
        _refuse_nothing_left(run, loaded)
    return loaded


def has_ended(run: Run, overrides: Sequence[str]) -> bool:
    """Whether a run is complete, and `overrides` do not make it longer."""
    return bool(run.summary()) and not any(map(_is_length, overrides))


def _is_length(override: str) -> bool:
    return override.partition("=")[0].strip() in _LENGTH


def _refuse_nothing_left(run: Run, loaded: Loaded) -> None:
    """UserError if a complete run has nothing left to train under another length, or nothing to go on from."""
    summary, target = run.summary(), loaded.config.target
    if summary.get("reached") and not target.train_on:
        raise UserError(
            f"{run.name} has reached its target, a top-1 accuracy of {target.top1}: to train on, start a new run with "
            f"--set target.train_on=true from {run.from_here().config_path}"
        )
    steps, before = summary.get("steps", 0), run.config().target.max_steps
    # a limit of steps may have ended the last epoch early
    epochs = summary.get("epochs", 0) - (before is not None and steps >= before)
    for key, longest, done in (("max_epochs", target.max_epochs, epochs), ("max_steps", target.max_steps, steps)):
        if longest is not None and longest <= done:
            raise UserError(f"target.max_{key[4:]} is {longest}, and {run.name} has trained {done} {key[4:]}: raise it")
    if not saved_in(run.path / "checkpoints"):
        raise UserError(
            f"{run.name} is complete and has no checkpoint from which it could go on: checkpoint.every_epochs and "
            "checkpoint.every_steps say when a run saves one"
        )


def change(run: Run, loaded: Loaded, overrides: Sequence[str]) -> None:
    """Replace the run's config, and name the change as the run's arm, so that reports do not count it with others.

    The summary of a complete run that becomes longer is kept in the folder of its newest attempt.
    """
    if overrides:
        before = run.facts().get("arm")
        run.replace_config(loaded)
        if any(text.strip().startswith("strategy") for text in overrides):
            keep_code(loaded.config, run.path, only_strategy=True)
        run.update(arm=" ".join(filter(None, [before, f"resumed with {' '.join(overrides)}"])))
        if run.summary():
            (run.path / "summary.json").rename(run.attempt / "summary.json")


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
    if (job := live_job(run)) is not None:
        how = run.cancel_command if job in jobs_of(run) else f"scancel {job}"
        raise UserError(f"{run.name} still has Slurm job {job}: cancel it first ({how})")
