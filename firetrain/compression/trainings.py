"""The trainings of a compression, each in a folder of its own: on this machine, or as Slurm jobs, one after another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from firetrain.config import Config, Loaded
from firetrain.errors import UserError
from firetrain.launch.attempt import Cancelled, RankFailed
from firetrain.launch.job import JobSettings, launch_slurm, new_folder, request_of, resume_slurm
from firetrain.launch.local import launch_local, resume_local
from firetrain.launch.refusals import unseen_data
from firetrain.launch.status import state_of
from firetrain.launch.wait import failed, wait_for
from firetrain.records import Run

# trains a config in this folder, waits for the end, and returns the complete run
Train = Callable[[Loaded, Path], Run]


def train_here(console: Console) -> Train:
    """Trainings on this machine; one that was interrupted goes on from its newest checkpoint."""

    def train(loaded: Loaded, folder: Path) -> Run:
        run = begun(loaded, folder)
        try:
            if run is None or _moved(run, loaded):
                return launch_local(loaded, folder, console)
            if not run.summary():
                resume_local(run, console)
        except (Cancelled, RankFailed) as error:
            what, said, _ = str(error).partition("\nto resume: ")
            if said:  # to resume this training alone would make no file
                error.args = (f"{what}\nto go on: repeat the command",)
            raise
        return run

    return train


def train_as_jobs(settings: JobSettings, console: Console) -> Train:
    """Trainings as Slurm jobs: a job that is still in the queue is waited for, and one that was interrupted is resumed."""

    def train(loaded: Loaded, folder: Path) -> Run:
        run = begun(loaded, folder)
        if run is None or _moved(run, loaded) or (not run.summary() and state_of(run).ended):
            run = None if run is None or _moved(run, loaded) else run
            run = _submitted(loaded, folder, run, settings, console)
        if not wait_for(run, settings.site.poll_every_s):
            raise failed(run)
        return run

    return train


def begun(loaded: Loaded, folder: Path) -> Run | None:
    """The newest run in the folder of a training; UserError if its config is another one, but for the place of the images."""
    found = sorted(path.parent for path in folder.glob("*/run.json"))
    if not found:
        return None
    run = Run(found[-1])
    if _without_root(run.config()) != _without_root(loaded.config):
        raise UserError(
            f"{run.path} has another config than this compression: give another --out, or delete {folder} and the trainings "
            "after it"
        )
    return run


def _moved(run: Run, loaded: Loaded) -> bool:
    """Whether the images of a run that is not complete are elsewhere now: it cannot go on with its own config."""
    return not run.summary() and run.config().data.root != loaded.config.data.root


def _without_root(config: Config) -> Config:
    return config.model_copy(update={"data": config.data.model_copy(update={"root": None})})


def _submitted(loaded: Loaded, folder: Path, run: Run | None, settings: JobSettings, console: Console) -> Run:
    if note := unseen_data(loaded.config.data, settings.site):
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    request = request_of(loaded, run.path if run else new_folder(loaded, folder), settings)
    done = resume_slurm(run, loaded, request, settings) if run else launch_slurm(loaded, request, settings)
    text = f"job {done.jobs[-1]} submitted: {request.world}; {done.run.path}"
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    return done.run
