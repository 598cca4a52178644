"""A run on this machine, from its config to its end: create the record, start the ranks, write down how it went."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from firetrain.cluster import SystemClock, World
from firetrain.config import Config, Loaded
from firetrain.errors import CannotWrite, FiretrainError, UserError
from firetrain.launch.job import refuse_unreadable_data, world_of
from firetrain.launch.local import Attempt, Cancelled, RankFailed, run_ranks
from firetrain.launch.progress import progress
from firetrain.launch.resume import refuse_resumption, resume_command
from firetrain.limits import MOST_LOCAL_RANKS
from firetrain.provenance import provenance
from firetrain.records import ATTEMPT_BEGAN, CANCELLED, FAILED, RUNNING, Run
from firetrain.records.lock import held


def launch_local(loaded: Loaded, results: Path, console: Console) -> Run:
    """Train on this machine and wait for the end; several nodes are emulated.

    Rank 0 writes down how it ended, this process how it was ended: the run's record tells its state in every case. RankFailed,
    Cancelled or CannotWrite if it did not end by itself.
    """
    world = _local_world(loaded)
    facts = {"world": str(world), "ranks": world.size, "machine": provenance()}
    run = Run.create(results, loaded, SystemClock().date(), facts)
    with held(run) as lock:
        _attend(run, loaded.config, Attempt(world, run.attempt, holds=[lock]), console)
    return run


def resume_local(run: Run, console: Console) -> None:
    """Go on with a run that has ended early, from its newest checkpoint, on this machine; as `launch_local`."""
    loaded = run.loaded()
    world, before = _local_world(loaded), run.facts().get("ranks")
    if before not in (None, world.size):
        raise UserError(
            f"{run.name} was begun on {before} ranks, and its config says {world.size}: who started them has to do so again "
            f"(firetrain train {run.config_path} --into {run.path})"
        )
    refuse_resumption(run)
    began = SystemClock().date()
    with held(run) as lock:
        attempt = run.begin_attempt()
        run.update(state=RUNNING, ended=None, reason="")
        variables = {ATTEMPT_BEGAN: str(began.timestamp())}
        _attend(run, loaded.config, Attempt(world, attempt, holds=[lock], variables=variables), console)


def _local_world(loaded: Loaded) -> World:
    """The world that a config asks for; UserError if it cannot be on one machine, or the images are not there."""
    refuse_unreadable_data(loaded)
    world = world_of(loaded)
    if world.size > MOST_LOCAL_RANKS:
        raise UserError(
            f"{world.size} ranks: at most {MOST_LOCAL_RANKS} are started on one machine; on a cluster: --on slurm"
        )
    return world


def _attend(run: Run, config: Config, attempt: Attempt, console: Console) -> None:
    """Run the ranks of an attempt to their end, and write down how they were ended if not by themselves."""

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    say(f"run {run.path}")
    emulated = ", nodes emulated on this machine" if len(attempt.world.nodes) > 1 else ""
    say(f"{attempt.world}{emulated}; logs in {run.logs.relative_to(run.path)}")
    view = progress(run, config, console)

    def save() -> None:
        with suppress(OSError):  # on a full disk; the second Ctrl-C needs none
            run.stop_mark.touch()
        with suppress(OSError):  # the terminal was closed
            say("saving; a second Ctrl-C ends the ranks at once, without the steps since the newest checkpoint")

    try:
        command = ["train", str(run.config_path), "--into", str(run.path)]
        run_ranks(command, replace(attempt, tick=view.tick, save=save))
    except Cancelled as error:
        if run.summary():
            return  # it was done before it could be stopped
        if not error.saved:
            _note(run, CANCELLED, str(error))
        raise _with_advice(error, run) from None
    except RankFailed as error:
        raise _explained(error, run) from None
    finally:
        view.close()


def _with_advice(error: Cancelled, run: Run) -> Cancelled:
    saved = f"; {run.facts().get('reason')}" if error.saved else ""
    error.args = (f"{error}{saved}\nto go on: {resume_command(run)}",)
    return error


def _explained(error: RankFailed, run: Run) -> FiretrainError:
    """How a run ended that a rank has failed in: by what rank 0 has written down, where that says more."""
    reason, facts = str(error).partition("\n")[0], run.facts()
    told = str(facts.get("reason", "")) if facts["state"] == FAILED else ""
    if error.status == CannotWrite.exit_code:
        text = told or f"{run.path}: rank 0 could not write there; make room, then go on with {resume_command(run)}"
        _note(run, FAILED, text)
        return CannotWrite(text)
    # a run that diverged ends on all ranks at once: rank 0 has told why
    _note(run, FAILED, told if told.startswith("diverged") else reason)
    return error


def _note(run: Run, state: str, reason: str) -> None:
    run.release()
    with suppress(CannotWrite):
        run.update(state=state, ended=SystemClock().date().isoformat(), reason=reason)
