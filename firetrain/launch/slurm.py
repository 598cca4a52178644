"""Slurm's commands: describe the cluster, query, submit and cancel jobs."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from firetrain.errors import FiretrainError

_TIMEOUT_S = 60.0
_RETRY_AFTER_S = (2.0, 5.0, 10.0)
# variables of a surrounding job, or of the user's preferred formats, which would change commands or their output
_SCRUBBED = re.compile(r"^(SLURM_|SBATCH_|SRUN_|SCANCEL_|SQUEUE_|SACCT_|SINFO_|SCONTROL_|PMI|PMIX|OMPI_)")
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS")
# variables that a job inherits from its submitter: user, language, paths of programs, environment modules
_CARRIED = re.compile(
    r"^(HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|PATH|LD_LIBRARY_PATH|SLURM_CONF|SLURM_CLUSTERS|BASH_ENV|"
    r"BASH_FUNC_\w*(module|ml)\w*\W.*|_*(LMOD|MODULE|MODULES|LM)\w*|_Module\w*|LOADEDMODULES|ENV)$"
)
# other variables that affect ranks; users may expect them to be passed
_NOTEWORTHY = re.compile(
    r"^((NCCL|GLOO|OMP|KMP|MKL|OPENBLAS|TORCH|PYTORCH|CUDA|CUDNN|HOROVOD|UCX|FI|IB|FIRETRAIN)_\w+|PYTHON\w+|LD_PRELOAD)$"
)
_UNREACHABLE = re.compile(r"[Uu]nable to contact|Connection refused|[Cc]ommunication|timed out|failed to fetch config")
_START = re.compile(r"to start at (\S+) using")

ENDED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT",
)  # fmt: skip


class NoSlurm(FiretrainError):
    """Slurm's commands are not installed here, or the controller does not answer."""

    exit_code = 69


class Unsure(NoSlurm):
    """A job was submitted, but it is unknown whether Slurm has accepted it."""


class Refused(FiretrainError):
    """Slurm rejects a request; the text is Slurm's message."""

    exit_code = 2


@dataclass(frozen=True)
class SlurmJob:
    """A job according to Slurm. `state`: the first word of Slurm's state, in capitals. Dates are in Slurm's format."""

    id: int
    state: str
    reason: str = ""
    start: str = ""
    end: str = ""
    elapsed: str = ""
    limit: str = ""
    nodes: str = ""
    partition: str = ""


def environment() -> dict[str, str]:
    """The environment for Slurm's commands, without variables of a surrounding job or of the user's formats."""
    return {key: value for key, value in os.environ.items() if key in _KEPT or not _SCRUBBED.match(key)}


def job_environment(passed: Sequence[str] = ()) -> dict[str, str]:
    """The environment of a job: basic variables of the submitter's environment, and those named in `passed`.

    sbatch passes on its whole environment, so it is started with this one. Values are not written to any file.
    """
    return {key: value for key, value in os.environ.items() if _CARRIED.match(key) or key in passed}


def left_behind(passed: Sequence[str] = ()) -> list[str]:
    """The names of variables that are set here and affect ranks, but are not passed to the job."""
    return sorted(key for key in os.environ if _NOTEWORTHY.match(key) and key not in passed)


def ask(*command: str, passed: Sequence[str] | None = None) -> str:
    """Run one of Slurm's commands and return its output; `passed`, for commands that submit: see `job_environment`.

    Raises NoSlurm, or Refused with Slurm's message.
    """
    return _answer(command, passed).stdout


def records(kind: str) -> list[dict[str, str]]:
    """All partitions, nodes or reservations according to `scontrol show`, each as a mapping."""
    lines = ask("scontrol", "-o", "show", kind).splitlines()
    return [dict(re.findall(r"(\w+)=(.*?)(?=\s+\w+=|$)", line)) for line in lines if "=" in line]


def estimate(script: Path) -> str:
    """Slurm's estimate of the job's start, in its format of dates; empty if there is none. Raises Refused."""
    words = _words(_answer(("sbatch", "--test-only", str(script))).stderr)
    found = _START.search(words)
    return found[1] if found else ""


def submit(script: Path, name: str, after: int | None = None, passed: Sequence[str] = (), newer_than: int = 0) -> int:
    """Submit a script; returns the number of the job. A job is never submitted twice, even if the controller does not answer.

    `name` is unique: a retry first checks with squeue that no job of this name exists; jobs numbered up to `newer_than` are
    ignored. `passed`: see `job_environment`. Raises NoSlurm if no job was created, Unsure if that is unknown.
    """
    options = [f"--dependency=afterany:{after}", "--kill-on-invalid-dep=yes"] if after is not None else []
    for wait_s in (*_RETRY_AFTER_S, None):
        try:
            return _number(ask("sbatch", "--parsable", *options, str(script), passed=passed), name)
        except NoSlurm as error:
            lost = error
        time.sleep(wait_s or 0.0)
        try:
            numbers = [number for number in numbers_of(name) if number > max(after or 0, newer_than)]
        except NoSlurm:
            raise Unsure(f"{lost}\nSlurm may have accepted the job: check with `squeue --name={name}`") from None
        if numbers:
            return max(numbers)
    raise lost


def _number(answer: str, name: str) -> int:
    """The job's number in the last line of `sbatch --parsable`; the name of the cluster may follow it."""
    last = answer.strip().splitlines()[-1] if answer.strip() else ""
    found = re.match(r"^(\d+)(;.+)?$", last)
    if not found:
        raise Unsure(f"sbatch's answer contains no job number ({answer!r}): check with `squeue --name={name}`")
    return int(found[1])


def job(number: int) -> SlurmJob | None:
    """A job according to squeue, otherwise to accounting; None if neither knows it."""
    form = "%i|%T|%r|%S|%e|%M|%l|%N|%P"
    try:
        answer = ask("squeue", "-h", "-t", "all", "-j", str(number), "-o", form)
    except Refused as error:
        if "Invalid job id" not in str(error):
            raise NoSlurm(str(error)) from None
        answer = ""  # no longer known to squeue
    columns = len(form.split("|"))
    for line in answer.splitlines():  # a wrapper of squeue may print other lines
        if len(found := line.strip().split("|")) == columns:
            return SlurmJob(number, _word(found[1]), *found[2:])
    return _accounted(number)


def exit_code(number: int) -> int:
    """The exit code of a job; 0 also if it was not the job that ended itself, or if Slurm's controller no longer knows it.

    sacct is not asked, because it subtracts 128 from the codes of signals.
    """
    try:
        found = re.search(r"\bExitCode=(\d+):", ask("scontrol", "-o", "show", "job", str(number)))
    except (Refused, NoSlurm):
        return 0
    return int(found[1]) if found else 0


def cancel(number: int) -> None:
    """Ask Slurm to cancel a job; it ends later."""
    ask("scancel", str(number))


def _accounted(number: int) -> SlurmJob | None:
    columns = "State,Start,End,Elapsed,Timelimit,NodeList,Partition"
    try:
        answer = ask("sacct", "-n", "-P", "-X", "-D", "-j", str(number), "-o", columns)
    except (Refused, NoSlurm):  # not an error: the site may have no accounting database
        return None
    lines = [line for line in answer.splitlines() if line.strip()]
    if not lines:
        return None
    state, *rest = lines[-1].split("|")
    return SlurmJob(number, _word(state), "", *rest)


def numbers_of(name: str) -> list[int]:
    """The jobs of this name that Slurm still knows, queued, running or ended."""
    words = ask("squeue", "-h", "-t", "all", f"--name={name}", "-o", "%A").split()
    return [int(word) for word in words if word.isdecimal()]


def _answer(command: Sequence[str], passed: Sequence[str] | None = None) -> subprocess.CompletedProcess[str]:
    variables = environment() if passed is None else job_environment(passed)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=variables, stdin=subprocess.DEVNULL, timeout=_TIMEOUT_S
        )
    except FileNotFoundError:
        raise NoSlurm(f"{command[0]} not found: this is not a Slurm node; use --on local") from None
    except subprocess.TimeoutExpired:
        raise NoSlurm(f"{command[0]} did not answer within {_TIMEOUT_S:g} s") from None
    if done.returncode:
        words = _words(done.stderr or done.stdout)
        if _UNREACHABLE.search(words):
            raise NoSlurm(f"Slurm's controller does not answer: {words}")
        raise Refused(f"{command[0]}: {words or f'exit code {done.returncode}'}")
    return done


def _word(state: str) -> str:
    """The state without additions: `CANCELLED by 123` and `CANCELLED+` become CANCELLED."""
    return state.split()[0].rstrip("+") if state.strip() else "UNKNOWN"


def _words(stderr: str) -> str:
    """Slurm's message in one line, without the program names at the start of its lines."""
    lines = [re.sub(r"^\w+: (error: |fatal: )?", "", line).strip() for line in stderr.splitlines()]
    return "; ".join(line for line in lines if line)


def date(text: str) -> datetime | None:
    """Parse a date of Slurm; None if the text is not a date."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
