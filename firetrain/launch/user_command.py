"""Runs a command of the user's own on this machine, as ranks that find each other by torchrun's variables."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from shutil import which

from rich.console import Console

from firetrain.cluster import SystemClock, World
from firetrain.cluster.memory import refuse_too_many_ranks
from firetrain.config.files import exists, is_file, is_folder, read_beginning
from firetrain.errors import FiretrainError, UserError
from firetrain.launch.attempt import Attempt, Cancelled, run_ranks
from firetrain.launch.local import begin_again, reserve_space
from firetrain.launch.port import free_port
from firetrain.launch.progress import say
from firetrain.launch.site import Site
from firetrain.launch.status import is_worth_resuming
from firetrain.limits import MOST_LOCAL_RANKS
from firetrain.provenance import provenance
from firetrain.records import FAILED, RUNNING, STOPPED, Run
from firetrain.records.lock import held
from firetrain.records.run_name import run_name
from firetrain.records.script_steps import ATTEMPT, RUN, variables_of_trial
from firetrain.records.user_command import command_of, complete, prepare, script_of

_PYTHON = re.compile(r"python[0-9.]*")
_PORTS = 20_000, 39_999
_LONGEST_NAME = 40
# as many bytes as Linux reads of a script's first line
_FIRST_LINE = 256


def name_of(command: Sequence[str]) -> str:
    """The name of a command, for runs: that of its script, or else of its program."""
    found = script_of(command)
    script = Path(found).stem if found else Path(command[0]).name
    return re.sub(r"[^A-Za-z0-9]+", "-", script).strip("-")[:_LONGEST_NAME] or "command"


def rendezvous_port() -> int:
    """A free port at which the ranks of a script meet."""
    return free_port(*_PORTS) or 29500


def refuse_unrunnable(command: Sequence[str], folder: Path, site: Site | None = None) -> None:
    """UserError if there is no such folder or program, or if the system could not execute it.

    On a `site` whose jobs load modules or prepare themselves, PATH is another one; in its container everything is.
    """
    if site and site.container is not None:
        return
    if not is_folder(folder):
        raise UserError(f"no folder {folder}, where the command is run")
    program = command[0]
    prepared = site is not None and bool(site.modules or site.setup)  # which may also make the files
    script = command[1] if len(command) > 1 and _PYTHON.fullmatch(Path(program).name) else ""
    if script.endswith(".py") and not is_file(folder / script) and not prepared:
        raise UserError(f"{script}: no such file (looked from {folder}), which {program} is to run")
    path, interpreted = folder / program, f"{'python' if program.endswith('.py') else 'bash'} {program}"
    if os.sep not in program:
        if which(program) is None and not prepared:
            there = f"; ./{program} or {interpreted} would run the file of this name" if is_file(path) else ""
            raise UserError(f"{program}: no such program in PATH: the words after -- are the command{there}")
        return
    if not is_file(path):
        raise UserError(f"{program}: no such program (looked from {folder}): the words after -- are the command")
    if not os.access(path, os.X_OK):
        raise UserError(f"{program} is not executable: chmod +x {program}, or {interpreted}")
    if not os.access(path, os.R_OK):  # a program may be executable and not readable
        return
    beginning = read_beginning(path, _FIRST_LINE)
    interpreter = beginning[2:].split(b"\n")[0].split()[:1] if beginning.startswith(b"#!") else []
    if interpreter and not exists(Path(os.fsdecode(interpreter[0]))):
        raise UserError(f"{program}: its first line names {os.fsdecode(interpreter[0])}, which does not exist")
    if not beginning.startswith((b"#!", b"\x7fELF")) and b"\0" not in beginning:
        raise UserError(f"{program} does not say in its first line, by #!, what is to run it: {interpreted}")


def launch_here(command: Sequence[str], world: World, name: str, results: Path, console: Console) -> Run:
    """Run a command once per rank, and wait for the end; several nodes are emulated.

    RankFailed, Cancelled or CannotWrite if the run did not complete.
    """
    refuse_unplaced(world)
    refuse_unrunnable(command, Path.cwd())
    clock = SystemClock()
    facts = {
        "state": RUNNING, "world": str(world), "ranks": world.size, "node_of": list(world.node_of), "folder": str(Path.cwd()),
        "machine": provenance(),
    }  # fmt: skip
    run = prepare(results / run_name(name, clock.date()), command, clock.date(), facts)
    run.begin_attempt()
    reserve_space(run)
    with held(run) as lock:
        _attend(run, world, [lock], console)
    return run


def resume_here(run: Run, console: Console) -> None:
    """Run the command of an interrupted run again, which finds what it has saved in `checkpoints`. As `launch_here`."""
    world = World(tuple(run.facts()["node_of"]))
    refuse_unplaced(world)
    refuse_unrunnable(command_of(run) or [], Path(run.facts().get("folder", ".")))
    with held(run) as lock:
        begin_again(run)
        _attend(run, world, [lock], console)


def refuse_unplaced(world: World) -> None:
    """UserError if so many ranks cannot run on this machine."""
    if world.size > MOST_LOCAL_RANKS:
        raise UserError(
            f"at most {MOST_LOCAL_RANKS} ranks can run on one machine (got {world.size}); use --on slurm on a cluster"
        )
    refuse_too_many_ranks(world.size)


def variables_of(run: Run, attempt: Path, world: World, port: int, rank: int) -> Mapping[str, str]:
    """The variables of a rank: torchrun's, and where the run is, and the attempt whose records the launcher reads."""
    node = world.node_of[rank]
    return {
        "RANK": str(rank), "WORLD_SIZE": str(world.size), "GROUP_RANK": str(node), "NODE_RANK": str(node),
        "LOCAL_RANK": str(world.nodes[node].index(rank)), "LOCAL_WORLD_SIZE": str(len(world.nodes[node])),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), RUN: str(run.path),
        "FIRETRAIN_STOP": str(run.stop_mark), ATTEMPT: str(attempt),
        "PYTHONSAFEPATH": "",  # a script imports the files beside it
        **variables_of_trial(run),
    }  # fmt: skip


class _Shown(AbstractContextManager[None]):
    """What rank 0 prints, shown as it comes; the end of the context shows what is left."""

    def __init__(self, log: Path, console: Console) -> None:
        self._log, self._console, self._shown = log, console, 0

    def tick(self) -> None:
        """Show the lines that are new; progress bars end theirs by a carriage return."""
        self._show(lambda text: max(text.rfind(b"\n"), text.rfind(b"\r")) + 1)

    def __exit__(self, *_: object) -> None:
        self._show(len)

    def _show(self, end_of: Callable[[bytes], int]) -> None:
        with suppress(FileNotFoundError), self._log.open("rb") as file:
            file.seek(self._shown)
            text = file.read()
            whole = text[: end_of(text)]
            self._shown += len(whole)
            if whole:
                with suppress(OSError):  # nobody reads it; the run continues
                    self._console.file.write(whole.decode(errors="replace"))
                    self._console.file.flush()


def _attend(run: Run, world: World, holds: Sequence[int], console: Console) -> None:
    """Run the ranks of an attempt until they end, and record how they ended."""
    command, folder = command_of(run) or [], Path(run.facts().get("folder", "."))
    port, began_s = rendezvous_port(), time.monotonic()

    def save() -> None:
        with suppress(OSError):
            run.stop_mark.touch()
        say(console, "asked the ranks to stop, by the file that FIRETRAIN_STOP names; a second Ctrl-C kills them")

    say(console, f"run {run.path}")
    say(console, f"{world}; logs in {run.logs.relative_to(run.path)}")
    shown = _Shown(run.logs / "rank-0000.log", console)
    attempt = Attempt(
        world, run.attempt, shown.tick, save, holds, program=(), folder_of_ranks=folder,
        of_rank=lambda rank: variables_of(run, run.attempt, world, port, rank),
    )  # fmt: skip
    try:
        with shown:
            run_ranks(command, attempt)
    except (FiretrainError, OSError) as error:
        run.release()
        stopped = isinstance(error, Cancelled) and error.saved
        reason = str(error).partition("\n")[0]
        run.update(state=STOPPED if stopped else FAILED, ended=SystemClock().date().isoformat(), reason=reason)
        if isinstance(error, OSError):
            raise UserError(f"{command[0]} cannot be started: {error.strerror}") from None
        # a trial is run again by its comparison
        if isinstance(error, Cancelled) or ("compared" not in run.facts() and is_worth_resuming(run, reason)):
            error.args = (f"{error}\nto resume: {run.from_here().resume_command}",)
        raise
    run.release()
    if run.stop_mark.exists():
        run.update(state=STOPPED, ended=SystemClock().date().isoformat(), reason="stopped on request")
        say(console, f"stopped on request\nto resume: {run.from_here().resume_command}")
        return
    elapsed_s = time.monotonic() - began_s
    complete(run, SystemClock().date(), elapsed_s)
    say(console, f"completed after {elapsed_s:.1f} s")
