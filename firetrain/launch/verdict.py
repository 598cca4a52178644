"""Decide from the ranks' records how an attempt of a batch job ended, and what the job script does next."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from firetrain.cluster import SystemClock
from firetrain.config.files import read_regular
from firetrain.errors import CannotWrite, LostPeer, UserError
from firetrain.launch.nodes import lost_nodes
from firetrain.records import FAILED, Run
from firetrain.records.file import write_whole
from firetrain.records.lost_peer import has_lost_peer
from firetrain.records.saved import saved_in
from firetrain.records.user_command import NEVER, PROGRESS, command_of, complete, has_advanced

_CONSEQUENCES = (LostPeer.exit_code, 128 + signal.SIGTERM)
NOT_DONE = 75  # EX_TEMPFAIL: the run can be resumed
# among the signals of a job: its script has ended a command that went on after it had been asked to stop
ENDED_IN_TIME = "LIMIT"


@dataclass(frozen=True)
class Ending:
    """The end of a rank, recorded by the job script: Unix seconds, rank, host, exit code.

    `lost_peer`: whether it has said that it lost another rank, as a user's script does, whose exit code does not tell it.
    """

    at_s: float
    rank: int
    host: str
    code: int
    lost_peer: bool = False

    @property
    def is_consequence(self) -> bool:
        """Whether the rank did not fail itself: it lost a peer, or was terminated."""
        return self.lost_peer or self.code in _CONSEQUENCES

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}: {in_words(self.code)}"


@dataclass(frozen=True)
class Verdict:
    """The exit code of the job (None: requeue), the reason, and the rank that failed first, if any."""

    exit_code: int | None
    why: str
    first: Ending | None = None


def in_words(code: int) -> str:
    """Describe a shell's exit code: 137 is `killed by signal 9 (SIGKILL)`."""
    if code <= 128 or code - 128 not in {number.value for number in signal.Signals}:
        return f"exit code {code}"
    number = signal.Signals(code - 128)
    memory = ", as the kernel does when memory runs out" if number is signal.SIGKILL else ""
    return f"killed by signal {number.value} ({number.name}){memory}"


def endings(attempt: Path) -> list[Ending]:
    """The ranks of an attempt that have ended, in the order in which they did; UserError if a record of them is damaged."""
    found = []
    for path in (attempt / "ranks").glob("*.exit"):
        try:
            at_s, rank, host, code = read_regular(path).decode().split()
            found.append(Ending(float(at_s), int(rank), host, int(code), has_lost_peer(attempt, int(rank))))
        except ValueError:
            raise UserError(f"{path}: damaged, not the record of a rank's end") from None
    return sorted(found, key=lambda ending: (ending.at_s, ending.rank))


def first_failure(found: list[Ending], expendable_from: int | None = None) -> Ending | None:
    """The earliest rank with a failure of its own; otherwise the earliest that lost a peer.

    A failure of a needed rank comes before those of ranks `expendable_from` on, without which the others go on.
    """
    failed = [ending for ending in found if ending.code]
    own = [ending for ending in failed if not ending.is_consequence]
    needed = [ending for ending in own if expendable_from is None or ending.rank < expendable_from]
    return next(iter(needed or own or failed), None)


def judge(
    run: Run,
    tasks: int,
    srun_code: int,
    signals: str,
    checkpoint_before: str,
    requeues_left: int,
    lost_nodes: Callable[[], Sequence[str]] = tuple,
    expendable_from: int | None = None,
) -> Verdict:
    """Decide what follows the newest attempt of `run`, which had `tasks` tasks.

    `signals`: signals received by the job script; `checkpoint_before`: name of the newest checkpoint at the start of the attempt.
    `lost_nodes` queries Slurm, which may take minutes; it is called only if a rank wrote no exit record. `expendable_from`: the
    first of the ranks without which the others go on: how they end does not matter if rank 0 ends well, and no failure of a
    needed rank is theirs.
    """
    found = endings(run.attempt)
    if expendable_from is not None and any(ending.rank == 0 and ending.code == 0 for ending in found):
        found, tasks = [ending for ending in found if ending.rank < expendable_from], min(tasks, expendable_from)
    if run.summary():
        return Verdict(0, "done")
    # regardless of the other ranks' exit codes, which may be codes of a launcher or a library for a lost peer
    ended_in_time = ENDED_IN_TIME in signals  # there is no time to ask for nodes
    if len(found) < tasks and not ended_in_time and (lost := lost_nodes()):
        return _without(run, lost, requeues_left)
    first = None if ended_in_time else first_failure(found, expendable_from)
    if first is not None:
        return _failed(run, tasks, found, first)
    if len(found) < tasks and not ended_in_time:
        code = srun_code or 70
        return Verdict(code, f"only {len(found)} of {tasks} ranks reported their exit; launcher: {in_words(srun_code)}")
    if run.is_allocation and srun_code and not signals and not run.stop_mark.exists():
        failed = [trial for trial in run.trials() if trial.state == FAILED]
        last = max(failed, key=lambda trial: str(trial.facts().get("ended", "")), default=None)
        if last is None:
            return Verdict(srun_code, f"not all trials were run: {in_words(srun_code)}")
        return Verdict(srun_code, f"trial {last.name} failed: {last.facts().get('reason', 'without a reason')}")
    command = command_of(run) is not None and not run.is_allocation
    if command and not signals and not run.stop_mark.exists():
        began_s = (run.attempt / "job").stat().st_mtime
        complete(run, SystemClock().date(), max(ending.at_s for ending in found) - began_s)
        return Verdict(0, "done")
    if run.cancel_mark.exists():
        return Verdict(0, "cancelled" if ended_in_time else "cancelled; saved")
    how, saved = ("ended before the walltime",) * 2 if ended_in_time else ("stopped", "saved")
    if "TERM" in signals:
        return Verdict(NOT_DONE, "saved; Slurm ended the job, and will restart it if the job is requeued")
    if requeues_left <= 0:
        never = command and run.facts().get("requeue") == NEVER
        return Verdict(NOT_DONE, f"{how + '; --requeue never' if never else saved}; {_not_requeued(run)}")
    if command:
        if run.facts().get("requeue", PROGRESS) == PROGRESS and not has_advanced(run):
            return Verdict(NOT_DONE, f"{how}; nothing newer in checkpoints/; {_not_requeued(run)}")
    elif newest_name(run) == checkpoint_before:
        return Verdict(NOT_DONE, "no step completed since the last start: not requeued; request a longer walltime")
    return Verdict(None, f"{saved}; requeued")


def _failed(run: Run, tasks: int, found: Sequence[Ending], first: Ending) -> Verdict:
    """The verdict if a rank has failed and no node is lost."""
    silent = sorted(set(range(tasks)) - {ending.rank for ending in found})
    if first.is_consequence and silent:
        text = f"rank {', '.join(map(str, silent))} hung (no exit record, node responds); {first}"
        return Verdict(first.code, text, first)
    left = next((ending for ending in found if ending.code == 0), None)
    if first.is_consequence and left and not run.stop_mark.exists():
        return Verdict(70, f"{left} before the run was complete, so the others lost it", left)
    return Verdict(first.code, f"first failure: {first}; {len(found)} of {tasks} ranks reported their exit", first)


def _without(run: Run, lost: Sequence[str], requeues_left: int) -> Verdict:
    """The verdict if nodes were lost through no fault of the run: requeue on other nodes."""
    text = f"node {', '.join(lost)} is lost"
    if requeues_left > 0:
        return Verdict(None, f"{text}; requeued")
    return Verdict(NOT_DONE, f"{text}; {_not_requeued(run)}")


def _not_requeued(run: Run) -> str:
    return f"not requeued (to resume: {'repeat firetrain compare' if run.is_allocation else run.resume_command})"


def newest_name(run: Run) -> str:
    """The file name of the newest checkpoint; empty if there is none."""
    found = saved_in(run.path / "checkpoints")
    return found[-1].name if found else ""


def main() -> None:
    """For the job script: print `requeue` or `exit CODE`, and write the reason to the attempt's verdict.txt."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("run", type=Path)
    for name in ("tasks", "srun-code", "requeues-left"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--expendable-from", type=int)
    for name in ("signals", "checkpoint-before"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--hosts", nargs="*", default=())
    given = vars(parser.parse_args())
    run, hosts = Run.open(given.pop("run")), given.pop("hosts")
    verdict = judge(run, **given, lost_nodes=lambda: lost_nodes(hosts))
    try:
        write_whole(run.attempt / "verdict.txt", f"{verdict.why}\n")
    except CannotWrite as error:  # of the disk that has ended the job
        print(f"firetrain: {verdict.why} ({error})", file=sys.stderr)
    print("requeue" if verdict.exit_code is None else f"exit {verdict.exit_code}")


if __name__ == "__main__":
    main()
