"""How an attempt of a batch job ended, from what its ranks left behind, and what the job script should do about it."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from firetrain.errors import LostPeer
from firetrain.launch.nodes import lost_nodes
from firetrain.records import Run

# a rank that ended so did what others made it do: it lost a peer, or was told to end
_CONSEQUENCES = (LostPeer.exit_code, 128 + signal.SIGTERM)
NOT_DONE = 75  # EX_TEMPFAIL: start it again, and it goes on


@dataclass(frozen=True)
class Ending:
    """One rank's end, as the job script wrote it down: seconds since 1970, rank, host, exit code."""

    at_s: float
    rank: int
    host: str
    code: int

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}: {in_words(self.code)}"


@dataclass(frozen=True)
class Verdict:
    """What to do (`exit_code`; None: requeue), why, and the rank that began it, if one did."""

    exit_code: int | None
    why: str
    first: Ending | None = None


def in_words(code: int) -> str:
    """An exit code as a shell has it: 137 is `killed by signal 9 (SIGKILL)`."""
    if code <= 128 or code - 128 not in {number.value for number in signal.Signals}:
        return f"exit code {code}"
    number = signal.Signals(code - 128)
    memory = ", as the kernel does when memory runs out" if number is signal.SIGKILL else ""
    return f"killed by signal {number.value} ({number.name}){memory}"


def endings(attempt: Path) -> list[Ending]:
    """The ranks of an attempt that have ended, in the order in which they did."""
    found = []
    for path in (attempt / "ranks").glob("*.exit"):
        at_s, rank, host, code = path.read_text().split()
        found.append(Ending(float(at_s), int(rank), host, int(code)))
    return sorted(found, key=lambda ending: (ending.at_s, ending.rank))


def first_failure(found: list[Ending]) -> Ending | None:
    """The one that began it: the earliest with a failure of its own, else the earliest of those that lost a peer."""
    failed = [ending for ending in found if ending.code]
    own = [ending for ending in failed if ending.code not in _CONSEQUENCES]
    return next(iter(own or failed), None)


def judge(
    run: Run,
    tasks: int,
    srun_code: int,
    told: str,
    checkpoint_before: str,
    requeues_left: int,
    lost_nodes: Callable[[], Sequence[str]] = tuple,
) -> Verdict:
    """The newest attempt of `run`, which had `tasks` tasks.

    `told`: the signals that the job script got; `checkpoint_before`: the newest checkpoint's name at the attempt's start.
    `lost_nodes` asks Slurm, which may take minutes to notice; it is called if ranks have left no record.
    """
    found = endings(run.attempt)
    if run.summary():
        return Verdict(0, "done")
    first = first_failure(found)
    if first is not None:
        silent = sorted(set(range(tasks)) - {ending.rank for ending in found})
        # whatever the others ended with: a launcher or a library may have codes of its own for a peer that is gone
        if silent and (lost := lost_nodes()):
            return _without(lost, requeues_left)
        if first.code in _CONSEQUENCES and silent:
            text = f"rank {', '.join(map(str, silent))} hung: it left no record, and its node is alive; {first}"
            return Verdict(first.code, text, first)
        left = next((ending for ending in found if ending.code == 0), None)
        if first.code in _CONSEQUENCES and left and not run.stop_mark.exists():
            return Verdict(70, f"{left} before the run was done, and the others lost it", left)
        return Verdict(first.code, f"first failure: {first}; {len(found)} of {tasks} ranks left a record", first)
    if len(found) < tasks:
        if lost := lost_nodes():
            return _without(lost, requeues_left)
        code = srun_code or 70
        return Verdict(code, f"only {len(found)} of {tasks} ranks left a record; the launcher: {in_words(srun_code)}")
    if run.cancel_mark.exists():
        return Verdict(0, "cancelled; saved")
    if "TERM" in told:
        return Verdict(NOT_DONE, "saved; Slurm ends this job, and starts it again if it is to be requeued")
    if requeues_left <= 0:
        return Verdict(NOT_DONE, "saved; not requeued any more: sbatch job.sh in its folder goes on")
    if newest_name(run) == checkpoint_before:
        return Verdict(NOT_DONE, "stopped without a step since the last start: not requeued; ask for more time")
    return Verdict(None, "saved; requeued")


def _without(lost: Sequence[str], requeues_left: int) -> Verdict:
    """The job goes on elsewhere: nothing is wrong with the run."""
    text = f"node {', '.join(lost)} is lost"
    if requeues_left > 0:
        return Verdict(None, f"{text}; requeued")
    return Verdict(NOT_DONE, f"{text}; not requeued any more: sbatch job.sh in its folder goes on")


def newest_name(run: Run) -> str:
    """The newest checkpoint's file name, empty if there is none."""
    return max((path.name for path in (run.path / "checkpoints").glob("step-*.pt")), default="")


def main() -> None:
    """For the job script: prints `requeue` or `exit CODE`, and writes why to the attempt's verdict.txt."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("run", type=Path)
    for name in ("tasks", "srun-code", "requeues-left"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("told", "checkpoint-before"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--hosts", nargs="*", default=())
    given = vars(parser.parse_args())
    run, hosts = Run.open(given.pop("run")), given.pop("hosts")
    verdict = judge(run, **given, lost_nodes=lambda: lost_nodes(hosts))
    (run.attempt / "verdict.txt").write_text(f"{verdict.why}\n")
    print("requeue" if verdict.exit_code is None else f"exit {verdict.exit_code}")


if __name__ == "__main__":
    main()
