"""Ranks as processes of this machine: started together, stopped together, and the first failure is reported."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from firetrain.cluster import World
from firetrain.cluster.parent import LAUNCHER, end_with_parent
from firetrain.errors import CannotWrite, FiretrainError, LostPeer, UserError
from firetrain.launch.tail import ended_with_running_threads, log_tail, quoted_tail
from firetrain.launch.verdict import in_words
from firetrain.provenance import usable_cores
from firetrain.records.lost_peer import forget_lost_peer, has_lost_peer, told_of_lost_peer

_POLL_S = 0.05
_CULPRIT_S = 4.0
# in errors of Gloo and NCCL in a rank whose peer has ended
_OF_LOST_PEERS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited")
_ERROR = re.compile(r"(\[rank\d+\]: )?[\w.]+(Error|Exception)\b")
_GRACE_S = 3.0
# how often an expendable rank is started again; not after these exit codes, which another start would not change
_REVIVALS = 3
_FINAL = (UserError.exit_code, CannotWrite.exit_code)


class RankFailed(FiretrainError):
    """A rank has failed; the text has its number, its exit and the end of its log.

    `status`: its exit code, or minus the number of the signal that killed it.
    """

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class Cancelled(FiretrainError):
    """The launcher was asked to stop, by Ctrl-C or a signal. `saved`: the ranks had time to save and exit."""

    def __init__(self, number: int, saved: bool) -> None:
        name = signal.Signals(number).name
        super().__init__(f"cancelled by {name}" if saved else f"cancelled by {name}; all ranks were stopped")
        self.exit_code = 128 + number
        self.saved = saved


@dataclass(frozen=True)
class Attempt:
    """One start of all ranks: the world, the folder in which they write, and callbacks.

    `tick` is called several times a second. `save` asks the ranks to save and exit; without it they are stopped immediately.
    `holds`: file descriptors that the ranks keep open. `variables`: further environment variables of the ranks. `expendable`:
    ranks without which the others go on; they are started again a few times, and `say` is called with a line about it.
    `program`: what the command is given to. `of_rank`: variables of a rank. `folder_of_ranks`: where ranks are started.
    """

    world: World
    folder: Path
    tick: Callable[[], None] = lambda: None
    save: Callable[[], None] | None = None
    holds: Sequence[int] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    expendable: Collection[int] = ()
    say: Callable[[str], None] = lambda text: None
    program: Sequence[str] = (sys.executable, "-m", "firetrain")
    of_rank: Callable[[int], Mapping[str, str]] = lambda rank: {}
    folder_of_ranks: Path | None = None


def run_ranks(command: Sequence[str], attempt: Attempt) -> None:
    """Run the attempt's program with COMMAND once per rank until all have ended; output goes to folder/logs/rank-NNNN.log.

    RankFailed as soon as one rank fails. Cancelled on SIGINT, SIGTERM or SIGHUP: the first signal lets the ranks save, the
    second stops them. No process is left behind in any case.
    """
    asked = False
    with _signals() as received, _ranks(command, attempt) as ranks:
        while True:
            with suppress(OSError):  # the terminal may be closed; ranks report a full disk themselves
                attempt.tick()
            # SIGHUP may come twice, from the system and from the shell
            again = any(number != signal.SIGHUP for number in received[1:])
            if received and (attempt.save is None or again):
                raise Cancelled(received[0], saved=False)
            if received and attempt.save and not asked:
                attempt.save()
                asked = True
            ranks.revive(is_over=bool(received))
            if any(ranks.processes[rank].poll() not in (None, 0) for rank in ranks.needed):
                rank, status = _culprit(ranks.processes, ranks.needed, attempt.folder)
                raise RankFailed(_tell(rank, status, ranks.processes, attempt.folder), status)
            if ranks.have_ended():
                with suppress(OSError):
                    attempt.tick()
                if received:
                    raise Cancelled(received[0], saved=True)
                return
            time.sleep(_POLL_S)


def rank_environment(world: World, rank: int, folder: Path, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of a rank, with its identity; all ranks share the cores, and communicate over loopback."""
    node = world.node_of[rank]
    threads = max(1, usable_cores() // world.size)
    return {
        **base,
        LAUNCHER: str(os.getpid()),
        "FIRETRAIN_RANK": str(rank),
        "FIRETRAIN_WORLD_SIZE": str(world.size),
        "FIRETRAIN_LOCAL_RANK": str(world.nodes[node].index(rank)),
        "FIRETRAIN_LOCAL_WORLD_SIZE": str(len(world.nodes[node])),
        "FIRETRAIN_NODE": str(node),
        "FIRETRAIN_RENDEZVOUS": str(folder / "rendezvous"),
        "GLOO_SOCKET_IFNAME": base.get("GLOO_SOCKET_IFNAME", "lo"),
        "OMP_NUM_THREADS": base.get("OMP_NUM_THREADS", str(threads)),
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",  # do not import a torch.py of the user's folder
    }


class _RankProcesses:
    """The processes of an attempt, by rank. `needed`: the ranks without which the others do not go on."""

    def __init__(self, command: Sequence[str], attempt: Attempt) -> None:
        self._command, self._attempt = command, attempt
        self.processes: list[subprocess.Popen[bytes]] = []
        self.needed = [rank for rank in range(attempt.world.size) if rank not in attempt.expendable]
        self._left = dict.fromkeys(attempt.expendable, _REVIVALS)
        self._lost_s: dict[int, float] = {}  # when a rank was found to have ended because it had lost a peer
        self._deadline: float | None = None

    def start(self) -> None:
        """Start all ranks."""
        (self._attempt.folder / "logs").mkdir(parents=True, exist_ok=True)
        for rank in range(self._attempt.world.size):
            _log(self._attempt.folder, rank).unlink(missing_ok=True)
            forget_lost_peer(self._attempt.folder, rank)
            self.processes.append(self._process(rank))

    def revive(self, *, is_over: bool) -> None:
        """Start expendable ranks that have died again, unless the run `is_over` or they have died too often."""
        for rank in [rank for rank in self._left if self.processes[rank].poll() not in (None, 0)]:
            code = self.processes[rank].returncode
            ending = in_words(code if code >= 0 else 128 - code)
            if is_over or self._deadline or code in _FINAL:
                del self._left[rank]
            elif self._left[rank] == 0:
                del self._left[rank]
                self._attempt.say(f"rank {rank}: {ending}; it has died {_REVIVALS + 1} times, and is not started again")
            elif (
                code == LostPeer.exit_code
                and time.monotonic() < self._lost_s.setdefault(rank, time.monotonic()) + _CULPRIT_S
            ):
                continue  # if the peer that it has lost has ended, so does the attempt meanwhile
            else:
                self._left[rank] -= 1
                self._lost_s.pop(rank, None)
                self.processes[rank] = self._process(rank)
                why = ", because it had lost a server" if code == LostPeer.exit_code else ""
                self._attempt.say(f"rank {rank}: {ending}{why}; started again")

    def have_ended(self) -> bool:
        """Whether all ranks have ended; expendable ones, which may just be starting again, get only a little time for it."""
        if any(self.processes[rank].poll() is None for rank in self.needed):
            return False
        self._deadline = self._deadline or time.monotonic() + _GRACE_S
        return all(process.poll() is not None for process in self.processes) or time.monotonic() > self._deadline

    def _process(self, rank: int) -> subprocess.Popen[bytes]:
        """Start a rank in its own session, so that Ctrl-C reaches only the launcher."""
        attempt = self._attempt
        variables = {
            **rank_environment(attempt.world, rank, attempt.folder, {**os.environ, **attempt.variables}),
            **attempt.of_rank(rank),
        }
        is_firetrain = bool(attempt.program)
        if not is_firetrain:  # what a user's script starts may be a rank, but its parent is the script
            del variables[LAUNCHER]
        with _log(attempt.folder, rank).open("ab") as log:
            return subprocess.Popen(
                [*attempt.program, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=variables,
                cwd=attempt.folder_of_ranks,
                start_new_session=True,
                pass_fds=attempt.holds,
                # firetrain's own ranks ask for it themselves, so that a fork of this process runs no code
                preexec_fn=None if is_firetrain else partial(end_with_parent, signal.SIGTERM),
            )


@contextmanager
def _ranks(command: Sequence[str], attempt: Attempt) -> Iterator[_RankProcesses]:
    """Context manager: start the ranks; end them afterwards."""
    ranks = _RankProcesses(command, attempt)
    try:
        ranks.start()
        yield ranks
    finally:
        _end(ranks.processes)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Terminate every rank and its child processes; kill them after a grace period."""
    for number, limit_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, None)):
        for process in processes:
            # child processes (loader, compiler) may survive a dead rank, in its session
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        deadline = time.monotonic() + (limit_s or 0)
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(None if limit_s is None else max(0.0, deadline - time.monotonic()))


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect the signals that ask to stop in a list, so that they do not interrupt the clean-up."""
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda number, frame: received.append(number)) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _culprit(ranks: Sequence[subprocess.Popen[bytes]], needed: Collection[int], folder: Path) -> tuple[int, int]:
    """(rank, exit status) of the first failure; one that only lost its peer is reported if no other fails in time.

    An own failure of a `needed` rank comes before those of ranks without which the others go on.
    """
    deadline = time.monotonic() + _CULPRIT_S
    seen: list[tuple[int, int]] = []
    while True:
        failed = [(rank, code) for rank, process in enumerate(ranks) if (code := process.poll()) not in (None, 0)]
        every = [
            (rank, code)
            for rank, code in failed
            if code != LostPeer.exit_code and not _seems_to_have_lost_peer(folder, rank)
        ]
        own, seen = [pair for pair in every if pair[0] in needed] or every, seen or failed
        if own or time.monotonic() > deadline or len(failed) == len(ranks):
            # a killed rank cannot report; the failures of its peers may be consequences
            return min(own or seen, key=lambda pair: (pair[1] > 0, pair[0]))
        time.sleep(_POLL_S)


def _seems_to_have_lost_peer(folder: Path, rank: int) -> bool:
    """Whether a rank has told that it lost a peer, or the last error in its log is one that ranks have for that reason."""
    errors = [line for line in log_tail(_log(folder, rank)) if _ERROR.match(line)]
    return has_lost_peer(folder, rank) or any(words in line for line in errors[-1:] for words in _OF_LOST_PEERS)


def _tell(rank: int, code: int, ranks: Sequence[subprocess.Popen[bytes]], folder: Path) -> str:
    ending = in_words(code if code >= 0 else 128 - code)  # as a shell writes it
    done = [str(number) for number, process in enumerate(ranks) if process.poll() == 0]
    stopped, said = len(ranks) - 1 - len(done), told_of_lost_peer(folder, rank).partition("\n")[0]
    told = [f"rank {rank} failed first: {ending}"]
    if ended_with_running_threads(_log(folder, rank)):
        told.append(
            "its threads still ran when it ended: a script ends torch's by torch.distributed.destroy_process_group()"
        )
    if said:
        told.append(said)
    if done and (said or code == LostPeer.exit_code):
        told.append(f"rank {', '.join(done)} ended with exit code 0")
    if stopped:
        told.append("the other rank was stopped" if stopped == 1 else f"the other {stopped} ranks were stopped")
    return f"{'; '.join(told)}\n{quoted_tail(_log(folder, rank))}"


def _log(folder: Path, rank: int) -> Path:
    return folder / "logs" / f"rank-{rank:04d}.log"
