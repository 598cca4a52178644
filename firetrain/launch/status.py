"""The state of a run, from its own record and from Slurm."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from shutil import which
from typing import Any

from pydantic import TypeAdapter

from firetrain.config.files import exists, is_file, read_regular
from firetrain.errors import CannotWrite, UserError
from firetrain.launch import slurm
from firetrain.launch.tail import log_tail, quoted_tail
from firetrain.launch.verdict import endings, first_failure, newest_name
from firetrain.records import CANCELLED, COMPLETED, FAILED, RUNNING, STOPPED, SUBMITTED, Run
from firetrain.records.lock import is_held, is_interrupted
from firetrain.records.user_command import command_of

# Slurm's reasons for pending jobs, explained
_REASONS = {
    "Priority": "jobs of higher priority are first",
    "Resources": "the nodes it needs are busy",
    "Dependency": "the previous job of the chain has not ended",
    "DependencyNeverSatisfied": "will never start: the job it depends on failed",
    "BeginTime": "a requeued job waits about two minutes",
    "JobHeldUser": "held; release it with `scontrol release JOBID`",
    "JobHeldAdmin": "held by an administrator",
    "QOSMaxJobsPerUserLimit": "you have as many jobs running as the qos allows",
    "ReqNodeNotAvail": "nodes it needs are down or reserved",
    "InvalidAccount": "will never start: the account is not valid",
    "InvalidQOS": "will never start: the qos is not valid",
    "PartitionConfig": "will never start: it requests more than its partition allows",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
}


@dataclass(frozen=True)
class _Answer:
    """What Slurm has answered about some jobs, and when (seconds since 1970)."""

    asked: float
    numbers: list[int]
    jobs: list[slurm.SlurmJob]


@dataclass(frozen=True)
class State:
    """The state of a run, in one word and as text, with its jobs according to Slurm and the last failure."""

    word: str
    text: str
    jobs: list[slurm.SlurmJob] = field(default_factory=list)
    failure: str = ""

    @property
    def ended(self) -> bool:
        """Whether the run will not continue without user action."""
        return self.word in (COMPLETED, FAILED, CANCELLED, STOPPED)


def state_of(run: Run, every_s: float = 0.0) -> State:
    """The state of a run. Slurm is queried at most every `every_s` seconds; its last answer is cached in the run's folder."""
    facts = run.facts()
    waiting = waiting_jobs_of(run)
    numbers = sorted({*jobs_of(run), *waiting})
    if run.summary():
        return State(COMPLETED, "completed")
    if not numbers or is_held(run) or (_ended_here(run, facts) and not waiting):
        return _here(run, facts)
    try:
        jobs, age_s = _jobs(run, numbers, every_s)
    except slurm.NoSlurm as error:
        if _ended_here(run, facts):
            return _here(run, facts)
        last = facts.get("state", "unknown")
        return State(last, f"{last} when last seen ({error})", failure=_failure(run))
    live = [job for job in jobs if job.state not in slurm.ENDED]
    jobs = [job for job in jobs if job in live or job.id not in waiting]
    if not live and _ended_here(run, facts):
        return _here(run, facts)
    asked = f" (as of {age_s:.0f} s ago)" if age_s >= 1 else ""
    if any(job.state in ("RUNNING", "COMPLETING", "CONFIGURING") for job in live):
        return State(RUNNING, f"running: {_doing(run)}{asked}", jobs)
    if live:
        return State(SUBMITTED, f"{_pending(live[0], run)}{asked}", jobs)
    # no job is left: report how the last attempt ended
    verdict = _verdict(run)
    if run.cancel_mark.exists():
        return State(CANCELLED, "cancelled", jobs)
    last = f"job {jobs[-1].id} {jobs[-1].state}" if jobs else "its jobs are no longer known to Slurm"
    if jobs and jobs[-1].state == "CANCELLED":
        return State(CANCELLED, last, jobs, _failure(run))
    word = STOPPED if facts.get("state") == STOPPED else FAILED
    reason = facts.get("reason", "")
    known = reason if facts.get("state") == FAILED and reason not in verdict else ""
    how = _how_to_resume(run) if word == FAILED and is_worth_resuming(run, f"{reason}{verdict}") else ""
    first = first_failure(endings(run.attempt), _expendable_from(run))
    # what rank 0 says may be a consequence of another rank's failure
    told = (known, verdict) if first is None or first.rank == 0 else (verdict, known)
    text = "; ".join(part for part in (word, *told, last, how) if part)
    return State(word, text, jobs, _failure(run) or _last_words(run, jobs))


def jobs_of(run: Run) -> list[int]:
    """The jobs of the run, oldest first: those that firetrain submitted, and those started by `sbatch job.sh`."""
    return sorted({*run.facts().get("jobs", []), *_numbers_in(run, "attempt-*/job")})


def waiting_jobs_of(run: Run) -> set[int]:
    """The jobs that wait, or waited until they were killed, for others to end before they begin an attempt."""
    return _numbers_in(run, ".attempt-*/job")


def _numbers_in(run: Run, pattern: str) -> set[int]:
    found = set[str]()
    for path in run.path.glob(pattern):
        with suppress(UserError):  # a job that was refused has removed it
            found.add(read_regular(path).decode(errors="replace").strip())
    return {int(text) for text in found if text.isdecimal() and len(text) < 19}


def live_job(run: Run) -> int | None:
    """The newest Slurm job of the run that is queued or running, also one submitted by hand; None if there is none.

    None without Slurm on this machine, too: the folder is then a copy of a job's run.
    """
    numbers = set(jobs_of(run)) if which("squeue") else set()
    if which("squeue") and exists(run.path / "job.sh") and not run.is_allocation:  # whose jobs have other names
        numbers |= set(slurm.numbers_of(run.name))
    live = (n for n in sorted(numbers, reverse=True) if (job := slurm.job(n)) and job.state not in slurm.ENDED)
    return next(live, None)


def _ended_here(run: Run, facts: dict[str, Any]) -> bool:
    """Whether the newest attempt of a run ran without a job."""
    return facts.get("state") != SUBMITTED and run.attempt.is_dir() and not (run.attempt / "job").exists()


def _here(run: Run, facts: dict[str, Any]) -> State:
    """The state of a run without a job. Its lock shows whether it still runs on the machine where it was started."""
    state, reason = facts.get("state", "unknown"), facts.get("reason", "")
    how = _how_to_resume(run)
    if state == RUNNING and is_held(run):
        return State(RUNNING, f"running: {_doing(run)}")
    if is_interrupted(run, facts):
        return State(FAILED, f"interrupted: its launcher and ranks are no longer running; {how}")
    failed = state == FAILED and is_worth_resuming(run, reason)
    advice = f"; {how}" if failed or state in (STOPPED, CANCELLED) else ""
    return State(state, f"{state}{': ' if reason else ''}{reason}{advice}", failure=_failure(run))


def _how_to_resume(run: Run) -> str:
    command = "repeat the firetrain compare command" if run.is_allocation else run.from_here().resume_command
    return f"to resume: {command}"


def is_worth_resuming(run: Run, reason: str) -> bool:
    """Whether a failed run has a checkpoint; what has diverged would do so again, and some reasons tell the command."""
    has_saved = any((run.path / "checkpoints").glob("*")) if command_of(run) else bool(newest_name(run))
    return has_saved and not reason.startswith("diverged") and "resume" not in reason


def _jobs(run: Run, numbers: list[int], every_s: float) -> tuple[list[slurm.SlurmJob], float]:
    """The run's jobs according to Slurm, and the age of the answer in seconds."""
    kept = run.path / "slurm.json"
    if every_s and is_file(kept):
        with suppress(OSError, ValueError):  # a damaged answer is asked for again
            answer = TypeAdapter(_Answer).validate_json(kept.read_bytes())
            age_s = time.time() - answer.asked
            if 0 <= age_s < every_s and answer.numbers == numbers:
                return answer.jobs, age_s
    jobs = [found for number in numbers if (found := slurm.job(number))]
    with suppress(CannotWrite):  # another user's run, or a full disk
        run.write("slurm.json", asdict(_Answer(time.time(), numbers, jobs)))
    return jobs, 0.0


def _failure(run: Run) -> str:
    first = first_failure(endings(run.attempt), _expendable_from(run))
    if first is None:
        return ""
    return f"first failure: {first}\n{quoted_tail(run.log(first.rank))}"


def _expendable_from(run: Run) -> int | None:
    """The first rank without which the others go on; None if all are needed, or if the run has no config."""
    from firetrain.launch.refusals import expendable_ranks  # imported here: it loads all that a launch checks

    with suppress(UserError):
        return next(iter(expendable_ranks(run.loaded())), None)
    return None


def _last_words(run: Run, jobs: list[slurm.SlurmJob]) -> str:
    """The end of the newest job's log if it never started its ranks; it contains the reason."""
    if not jobs:
        return ""
    number, has_failed = jobs[-1].id, jobs[-1].state == "FAILED"
    log, began = run.path / f"job-{number}.log", run.attempt / "job"
    if has_failed and not log.exists():
        return f"job {number} has written no log: do its nodes see the folder {run.path}?"
    newest_began = is_file(began) and began.read_text(errors="replace").strip() == str(number)
    if newest_began and (run.attempt / "verdict.txt").exists():
        return ""
    if has_failed and not log_tail(log):
        return f"job {number} ended before its ranks were started, without a word in {log}: see the site's setup"
    return quoted_tail(log) if log_tail(log) else ""


def _verdict(run: Run) -> str:
    path = run.attempt / "verdict.txt"
    return path.read_text(errors="replace").strip() if is_file(path) else ""


def _doing(run: Run) -> str:
    steps = run.metrics("step")
    attempt = f"attempt {run.attempts - 1}"
    if not steps:
        return attempt if command_of(run) else f"{attempt}, no step completed yet"
    loss = steps[-1].get("loss")  # not known of a command
    return f"{attempt}, step {steps[-1]['step']}" + ("" if loss is None else f", loss {loss:.4f}")


def _pending(job: slurm.SlurmJob, run: Run) -> str:
    reason = _REASONS.get(job.reason, job.reason)
    if job.reason == "PartitionTimeLimit":
        limits = {row.get("PartitionName"): row.get("MaxTime") for row in slurm.records("partition")}
        reason = f"will never start: {job.limit} > limit {limits.get(job.partition)} of partition {job.partition}"
    again = f" to continue with attempt {run.attempts}" if (run.path / "attempt-0").exists() else ""
    start = f", expected {job.start}" if slurm.date(job.start) else ""
    return f"waiting in the queue{again}: {reason}{start}"
