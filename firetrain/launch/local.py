"""Run training on this machine: create the run directory, start the ranks, record the outcome."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from firetrain.cluster import SystemClock, World
from firetrain.cluster.gpus import count_gpus, too_few_gpus
from firetrain.cluster.memory import refuse_too_many_ranks
from firetrain.config import Loaded
from firetrain.config.sections.target import TargetSection
from firetrain.errors import CannotCreate, CannotWrite, FiretrainError, UserError
from firetrain.launch.attempt import Attempt, Cancelled, RankFailed, run_ranks
from firetrain.launch.progress import progress, say
from firetrain.launch.refusals import expendable_ranks, refuse_unreadable_data, world_of
from firetrain.launch.resume import change, changed, refuse_resumption, where_it_goes_on
from firetrain.launch.status import is_worth_resuming
from firetrain.limits import MOST_LOCAL_RANKS
from firetrain.provenance import provenance
from firetrain.records import ATTEMPT_BEGAN, CANCELLED, FAILED, RUNNING, Run
from firetrain.records.lock import held


def launch_local(loaded: Loaded, results: Path, console: Console) -> Run:
    """Train on this machine and wait for the end; several nodes are emulated.

    Rank 0 records a normal end; this process records interruptions, so the state is always recorded. Raises RankFailed,
    Cancelled or CannotWrite if the run did not complete.
    """
    world = local_world(loaded)
    facts = {"world": str(world), "ranks": world.size, "machine": provenance()}
    run = Run.create(results, loaded, SystemClock().date(), facts)
    reserve_space(run)
    with held(run) as lock:
        attempt = Attempt(world, run.attempt, holds=[lock], expendable=expendable_ranks(loaded))
        _attend(run, loaded.config.target, attempt, console)
    return run


def resume_local(run: Run, console: Console, overrides: Sequence[str] = ()) -> None:
    """Resume an interrupted run on this machine from its newest checkpoint. Otherwise as `launch_local`.

    `overrides`: changes of the strategy and the reduction.
    """
    loaded = changed(run, overrides)
    world, before = local_world(loaded), run.facts().get("ranks")
    if before not in (None, world.size):
        raise UserError(
            f"{run.name} was started by another launcher on {before} ranks, but its config says {world.size}: resume it with "
            f"that launcher (firetrain train {run.config_path} --into {run.path})"
        )
    refuse_resumption(run)
    began = SystemClock().date()
    with held(run) as lock:
        attempt = begin_again(run, overrides, partial(change, run, loaded, overrides))
        variables = {ATTEMPT_BEGAN: str(began.timestamp())}
        ranks = Attempt(world, attempt, holds=[lock], variables=variables, expendable=expendable_ranks(loaded))
        _attend(run, loaded.config.target, ranks, console)


def reserve_space(run: Run) -> None:
    """Reserve space for the record of how a new run ends; CannotCreate, and no run, if there is none."""
    try:
        run.reserve()
    except CannotWrite as error:
        shutil.rmtree(run.path, ignore_errors=True)
        raise CannotCreate(f"{error}; nothing was started") from None


def begin_again(run: Run, overrides: Sequence[str] = (), change: Callable[[], object] = lambda: None) -> Path:
    """Record that a run goes on, call `change`, and begin the next attempt; returns its folder.

    If that cannot be written, the run is recorded as it was before, and CannotWrite has the way to go on.
    """
    before = {key: run.facts().get(key) for key in ("state", "ended", "reason")}
    try:
        run.reserve()
        run.update(state=RUNNING, ended=None, reason="")
        change()
        return run.begin_attempt()
    except FiretrainError as error:
        run.release()
        with suppress(CannotWrite):
            run.update(**before)
        if not isinstance(error, CannotWrite):
            raise
        again = shlex.join([*shlex.split(run.from_here().resume_command), *(f"--set={text}" for text in overrides)])
        raise CannotWrite(f"{error}; nothing was started or lost: free some space, then resume with {again}") from None


def local_world(loaded: Loaded) -> World:
    """The world that a config asks for; UserError if it is too large for one machine, or the images are not readable."""
    refuse_unreadable_data(loaded.config.data)
    world, transport = world_of(loaded), loaded.config.cluster.transport
    if (gpus := count_gpus()) is not None:
        too_few_gpus(gpus, world.size, transport)
    if world.size > MOST_LOCAL_RANKS:
        raise UserError(
            f"at most {MOST_LOCAL_RANKS} ranks can run on one machine (got {world.size}); use --on slurm on a cluster"
        )
    refuse_too_many_ranks(world.size)
    return world


def _attend(run: Run, target: TargetSection, attempt: Attempt, console: Console) -> None:
    """Run the ranks of an attempt until they end, and record an interruption."""
    emulated = ", nodes emulated on this machine" if len(attempt.world.nodes) > 1 else ""
    say(console, f"run {run.path}")
    say(console, f"{attempt.world}{emulated}; logs in {run.logs.relative_to(run.path)}")
    view, told = progress(run, target, console), len(run.facts().get("warnings", []))

    def save() -> None:
        with suppress(OSError):  # the disk may be full; the second Ctrl-C needs no mark
            run.stop_mark.touch()
        say(console, "saving; a second Ctrl-C kills the ranks and loses the steps since the newest checkpoint")

    try:
        command = ["train", str(run.config_path), "--into", str(run.path)]
        run_ranks(command, replace(attempt, tick=view.tick, save=save, say=partial(say, console)))
    except Cancelled as error:
        if run.summary():
            return  # the run was complete before it could be stopped
        if not error.saved:
            _note(run, CANCELLED, str(error))
        raise _with_advice(error, run) from None
    except RankFailed as error:
        raise _explained(error, run) from None
    finally:
        view.close()
        for warning in run.facts().get("warnings", [])[told:]:
            say(console, f"warning: {warning}")


def _with_advice(error: Cancelled, run: Run) -> Cancelled:
    saved = f"; {run.facts().get('reason')}" if error.saved else ""
    error.args = (f"{error}{saved}\nto resume: {run.from_here().resume_command}",)
    return error


def _explained(error: RankFailed, run: Run) -> FiretrainError:
    """The error to raise after a rank has failed, with the reason that rank 0 recorded, if there is one."""
    reason, facts = str(error).partition("\n")[0], run.facts()
    recorded = str(facts.get("reason", "")) if run.state == FAILED else ""
    if error.status == CannotWrite.exit_code:
        text = recorded or (
            f"{run.path}: a rank could not write there, nor say in its log what: the disk or quota seems to be full"
        )
        if "resume with" not in text:
            text += (
                f". Free some space, then resume with {run.from_here().resume_command}, which {where_it_goes_on(run)}"
            )
        _note(run, FAILED, text)
        return CannotWrite(text)
    # after divergence all ranks exit together, and rank 0 has recorded the reason
    kept = recorded if recorded.startswith("diverged") else reason
    _note(run, FAILED, kept)
    if is_worth_resuming(run, kept):
        error.args = (f"{error}\nto resume: {run.from_here().resume_command}",)
    return error


def _note(run: Run, state: str, reason: str) -> None:
    run.release()
    with suppress(CannotWrite):
        run.update(state=state, ended=SystemClock().date().isoformat(), reason=reason)
