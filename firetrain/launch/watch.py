"""A run on Slurm, looked at from outside: what state it is in and why, its logs, waiting for its end, ending it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from firetrain.errors import CannotWrite, UserError
from firetrain.launch import slurm
from firetrain.launch.resume import resume_command
from firetrain.launch.verdict import endings, first_failure
from firetrain.records import CANCELLED, COMPLETED, FAILED, RUNNING, STOPPED, SUBMITTED, Run
from firetrain.records.lock import NAME as LOCK
from firetrain.records.lock import is_held

_TAIL_LINES = 12
_LOG_EVERY_S = 0.5
# what a pending job waits for, in words
_REASONS = {
    "Priority": "jobs of higher priority come first",
    "Resources": "the nodes it needs are busy",
    "Dependency": "the job before it has not ended",
    "DependencyNeverSatisfied": "will never start: the job it depends on failed",
    "BeginTime": "a job that was requeued waits about two minutes",
    "JobHeldUser": "held; `scontrol release` lets it go",
    "JobHeldAdmin": "held by an administrator",
    "QOSMaxJobsPerUserLimit": "you have as many jobs running as the qos allows",
    "ReqNodeNotAvail": "nodes that it needs are down or reserved",
    "InvalidAccount": "will never start: the account is not valid",
    "InvalidQOS": "will never start: the qos is not valid",
    "PartitionConfig": "will never start: it asks for more than its partition allows",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
}


@dataclass(frozen=True)
class State:
    """What is known of a run: its state in one word, the same explained, Slurm's own view of its jobs, the last failure."""

    word: str
    text: str
    jobs: list[slurm.Job] = field(default_factory=list)
    failure: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen by itself."""
        return self.word in (COMPLETED, FAILED, CANCELLED, STOPPED)


def state_of(run: Run, every_s: float = 0.0) -> State:
    """From the run's own record, and from Slurm as far as it answers and remembers.

    Slurm is not asked again if it was within `every_s` seconds: what it said then is in the run's folder.
    """
    facts = run.facts()
    numbers = facts.get("jobs", [])
    if run.summary():
        return State(COMPLETED, "completed")
    if not numbers or is_held(run) or _ended_here(run, facts):
        return _here(run, facts)
    try:
        jobs, age_s = _jobs(run, numbers, every_s)
    except slurm.NoSlurm as error:
        return State(facts["state"], f"{facts['state']} when last seen ({error})", failure=_failure(run))
    live = [job for job in jobs if job.state not in slurm.ENDED]
    asked = f" (Slurm was asked {age_s:.0f} s ago)" if age_s >= 1 else ""
    if any(job.state in ("RUNNING", "COMPLETING", "CONFIGURING") for job in live):
        return State(RUNNING, f"running: {_doing(run)}{asked}", jobs)
    if live:
        return State(SUBMITTED, f"{_pending(live[0], run)}{asked}", jobs)
    # no job is left: how the last attempt ended
    verdict = _verdict(run)
    if run.cancel_mark.exists():
        return State(CANCELLED, "cancelled", jobs)
    last = f"job {jobs[-1].id} {jobs[-1].state}" if jobs else "Slurm has forgotten its jobs"
    if jobs and jobs[-1].state == "CANCELLED":
        return State(CANCELLED, last, jobs, _failure(run))
    word = STOPPED if facts["state"] == STOPPED else FAILED
    reason = facts.get("reason", "")
    known = reason if facts["state"] == FAILED and reason not in verdict else ""
    return State(word, "; ".join(part for part in (word, known, verdict, last) if part), jobs, _failure(run))


def _ended_here(run: Run, facts: dict[str, Any]) -> bool:
    """Whether the newest attempt of a run that was a job had none."""
    return facts["state"] != SUBMITTED and run.attempt.is_dir() and not (run.attempt / "job").exists()


def _here(run: Run, facts: dict[str, Any]) -> State:
    """Of a run that no job was submitted for: it runs where it was started, and its lock tells whether it still does."""
    state, reason = facts["state"], facts.get("reason", "")
    compared = (run.path / "parts").is_dir()
    goes_on = "the command that began it goes on with it" if compared else f"to go on: {resume_command(run)}"
    if state == RUNNING and is_held(run):
        return State(RUNNING, f"running: {_doing(run)}")
    if state == RUNNING and (run.path / LOCK).exists() and facts.get("machine", {}).get("host") == socket.gethostname():
        return State(FAILED, f"cut off: its launcher and its ranks are gone; {goes_on}")
    advice = f"; {goes_on}" if state in (STOPPED, CANCELLED) else ""
    return State(state, f"{state}{': ' if reason else ''}{reason}{advice}", failure=_failure(run))


def _jobs(run: Run, numbers: list[int], every_s: float) -> tuple[list[slurm.Job], float]:
    """What Slurm says of the run's jobs, and how many seconds ago it did."""
    kept = run.path / "slurm.json"
    if every_s and kept.exists():
        with suppress(OSError, ValueError):
            answer = json.loads(kept.read_text())
            age_s = time.time() - answer["asked"]
            if 0 <= age_s < every_s and answer["numbers"] == numbers:
                return [slurm.Job(**job) for job in answer["jobs"]], age_s
    jobs = [found for number in numbers if (found := slurm.job(number))]
    with suppress(CannotWrite):  # somebody else's run, or a full disk
        run.write("slurm.json", {"asked": time.time(), "numbers": numbers, "jobs": [asdict(job) for job in jobs]})
    return jobs, 0.0


def wait_for(run: Run, poll_every_s: float, show: Callable[[str], Any] | None = None) -> bool:
    """Until the run has ended; whether it is complete. `show` gets rank 0's log line by line."""
    seen = Tail(run, 0)
    asked_s = -poll_every_s
    while True:
        for line in seen.new():
            if show:
                show(line)
        if run.summary() and not show:
            return True
        if time.monotonic() - asked_s >= poll_every_s or run.summary():
            asked_s = time.monotonic()
            state = state_of(run)
            if state.ended:
                for line in seen.new():
                    if show:
                        show(line)
                return state.word == COMPLETED
        time.sleep(_LOG_EVERY_S)


class Tail:
    """A rank's log, from attempt to attempt, as it grows."""

    def __init__(self, run: Run, rank: int) -> None:
        self._run, self._rank = run, rank
        self._path: Path | None = None
        self._place = 0

    def new(self) -> list[str]:
        """Whole lines that were not seen before."""
        lines: list[str] = []
        newest = self._run.log(self._rank)
        if self._path and self._path != newest:
            lines += self._rest()
            lines.append(f"--- {newest.parent.parent.name} ---")
        if self._path != newest:
            self._path, self._place = newest, 0
        return lines + self._rest()

    def _rest(self) -> list[str]:
        if self._path is None or not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._place)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._place += len(whole)
        return whole.decode(errors="replace").splitlines()


def end(run: Run, now: bool) -> str:
    """Ask the ranks to save and end, or have Slurm end the jobs, if they do not run or `now`; what was done, in words."""
    facts = run.facts()
    state = state_of(run)
    if state.ended:
        return f"{run.name} was already {state.word}"
    numbers = facts.get("jobs", [])
    if not numbers or is_held(run):
        if now:
            raise UserError(
                f"{run.name} runs without Slurm: --now is for jobs; end it where it was started (Ctrl-C, twice)"
            )
        run.stop_mark.touch()
        return f"{run.name}: its ranks save and end at one of their next steps"
    run.cancel_mark.touch()
    if state.word == RUNNING and not now:
        run.stop_mark.touch()
        waiting = [job.id for job in state.jobs if job.state == "PENDING"]
        for number in waiting:
            slurm.cancel(number)
        return f"{run.name}: its ranks save and end at one of their next steps; --now to end them at once"
    for job in state.jobs:
        if job.state not in slurm.ENDED:
            slurm.cancel(job.id)
    run.update(state=CANCELLED)
    return f"{run.name}: cancelled"


def log_tail(path: Path, lines: int = _TAIL_LINES) -> list[str]:
    """The end of a log, if there is one."""
    return path.read_text(errors="replace").splitlines()[-lines:] if path.exists() else []


def _failure(run: Run) -> str:
    first = first_failure(endings(run.attempt))
    if first is None:
        return ""
    lines = "\n".join(f"  | {line}" for line in log_tail(run.log(first.rank))) or "  | (nothing)"
    return f"first failure: {first}\nlast lines of {run.log(first.rank)}:\n{lines}"


def _verdict(run: Run) -> str:
    path = run.attempt / "verdict.txt"
    return path.read_text().strip() if path.exists() else ""


def _doing(run: Run) -> str:
    steps = run.metrics("step")
    attempt = f"attempt {run.attempts - 1}"
    return (
        f"{attempt}, step {steps[-1]['step']}, loss {steps[-1]['loss']:.4f}"
        if steps
        else f"{attempt}, before its first step"
    )


def _pending(job: slurm.Job, run: Run) -> str:
    reason = _REASONS.get(job.reason, job.reason)
    if job.reason == "PartitionTimeLimit":
        limits = {row["PartitionName"]: row["MaxTime"] for row in slurm.records("partition")}
        reason = f"will never start: {job.limit} > limit {limits.get(job.partition)} of partition {job.partition}"
    again = f", to go on with attempt {run.attempts}" if (run.path / "attempt-0").exists() else ""
    start = f", expected {job.start}" if slurm.date(job.start) else ""
    return f"waiting in the queue{again}: {reason}{start}"
