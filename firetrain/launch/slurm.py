"""Slurm, asked in words and answered in text: what there is, what a job is doing, submit, cancel."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from firetrain.errors import FiretrainError

_TIMEOUT_S = 60.0
_RETRY_AFTER_S = (2.0, 5.0, 10.0)
# of a job that this process may be part of, and of the user's taste: neither may change what is asked or answered
_SCRUBBED = re.compile(r"^(SLURM_|SBATCH_|SRUN_|SCANCEL_|SQUEUE_|SACCT_|SINFO_|SCONTROL_|PMI|PMIX|OMPI_)")
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS")
# what a job takes over from its submitter: whose it is, the language, where programs are found, how modules are loaded
_CARRIED = re.compile(
    r"^(HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|PATH|LD_LIBRARY_PATH|SLURM_CONF|SLURM_CLUSTERS|BASH_ENV|"
    r"BASH_FUNC_\w*(module|ml)\w*\W.*|_*(LMOD|MODULE|MODULES|LM)\w*|_Module\w*|LOADEDMODULES|ENV)$"
)
# what else changes how ranks run: somebody who has set one may believe that it arrives
_NOTEWORTHY = re.compile(
    r"^((NCCL|GLOO|OMP|KMP|MKL|OPENBLAS|TORCH|PYTORCH|CUDA|CUDNN|HOROVOD|UCX|FI|IB|FIRETRAIN)_\w+|PYTHON\w+|LD_PRELOAD)$"
)
_UNREACHABLE = re.compile(r"[Uu]nable to contact|Connection refused|[Cc]ommunication|timed out|failed to fetch config")
_START = re.compile(r"to start at (\S+) using")

ENDED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT",
)  # fmt: skip


class NoSlurm(FiretrainError):
    """Slurm's commands are not here, or its controller does not answer."""

    exit_code = 69


class Unsure(NoSlurm):
    """A job was submitted, and nobody says whether it was taken."""


class Refused(FiretrainError):
    """Slurm does not take what was asked; the text is its own."""

    exit_code = 2


@dataclass(frozen=True)
class Job:
    """What Slurm says of a job. `state` is the first word of Slurm's, in capitals; dates are as Slurm writes them."""

    id: int
    state: str
    reason: str = ""
    start: str = ""
    end: str = ""
    elapsed: str = ""
    limit: str = ""
    nodes: str = ""
    partition: str = ""


def environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """For Slurm's commands: without what a surrounding job or a user's formats would change."""
    variables = os.environ if base is None else base
    return {key: value for key, value in variables.items() if key in _KEPT or not _SCRUBBED.match(key)}


def job_environment(passed: Sequence[str] = (), base: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a job gets of its submitter's environment: what starts programs anywhere, and the variables named in `passed`.

    sbatch hands on all that it is given, so it is given no more. Values are written nowhere.
    """
    variables = os.environ if base is None else base
    return {key: value for key, value in variables.items() if _CARRIED.match(key) or key in passed}


def left_behind(passed: Sequence[str] = (), base: Mapping[str, str] | None = None) -> list[str]:
    """The names of variables that change how ranks run, are set here, and do not get into a job."""
    variables = os.environ if base is None else base
    return sorted(key for key in variables if _NOTEWORTHY.match(key) and key not in passed)


def ask(*command: str, passed: Sequence[str] | None = None) -> str:
    """What a command of Slurm's prints; for one that submits, `passed` has the variables of the job (`job_environment`).

    NoSlurm, or Refused with Slurm's own words.
    """
    return _answer(command, passed).stdout


def records(kind: str) -> list[dict[str, str]]:
    """All partitions, nodes or reservations as `scontrol show` tells them: key=value."""
    lines = ask("scontrol", "-o", "show", kind).splitlines()
    return [dict(re.findall(r"(\w+)=(.*?)(?=\s+\w+=|$)", line)) for line in lines if "=" in line]


def estimate(script: Path) -> str:
    """When Slurm thinks that the job would start, as it writes dates; empty if it does not say. Refused with its reason."""
    words = _words(_answer(("sbatch", "--test-only", str(script))).stderr)
    found = _START.search(words)
    return found[1] if found else ""


def submit(script: Path, name: str, after: int | None = None, passed: Sequence[str] = (), newer_than: int = 0) -> int:
    """Submit a script; returns the job's number. A controller that does not answer is asked again, never told twice.

    `name` is the job's, and no other job's: before it is told again, squeue has to say that there is no such job. NoSlurm if
    there is none in the end, Unsure if that cannot be known. `passed`: see `job_environment`. Jobs of that
    name up to the number `newer_than` are earlier ones.
    """
    options = [f"--dependency=afterany:{after}", "--kill-on-invalid-dep=yes"] if after is not None else []
    for wait_s in (*_RETRY_AFTER_S, None):
        try:
            return _number(ask("sbatch", "--parsable", *options, str(script), passed=passed), name)
        except NoSlurm as error:
            lost = error
        time.sleep(wait_s or 0.0)
        try:
            numbers = [number for number in _numbers_of(name) if number > max(after or 0, newer_than)]
        except NoSlurm:
            raise Unsure(f"{lost}\nit may have taken the job all the same: `squeue --name={name}` tells") from None
        if numbers:
            return max(numbers)
    raise lost


def _number(answer: str, name: str) -> int:
    """Of `sbatch --parsable`'s last line: the job's number, and the cluster's name where there are several."""
    last = answer.strip().splitlines()[-1] if answer.strip() else ""
    found = re.match(r"^(\d+)(;.+)?$", last)
    if not found:
        raise Unsure(f"sbatch answered {answer!r}, which has no job's number; `squeue --name={name}` may know it")
    return int(found[1])


def job(number: int) -> Job | None:
    """What Slurm knows of a job: from squeue, or from accounting; None if it has forgotten it."""
    form = "%i|%T|%r|%S|%e|%M|%l|%N|%P"
    try:
        answer = ask("squeue", "-h", "-t", "all", "-j", str(number), "-o", form)
    except Refused as error:
        if "Invalid job id" not in str(error):
            raise NoSlurm(str(error)) from None
        answer = ""  # forgotten
    for line in answer.splitlines():
        _, state, *rest = line.strip().split("|")
        return Job(number, _word(state), *rest)
    return _accounted(number)


def cancel(number: int) -> None:
    """Have Slurm end a job."""
    ask("scancel", str(number))


def _accounted(number: int) -> Job | None:
    columns = "State,Start,End,Elapsed,Timelimit,NodeList,Partition"
    try:
        answer = ask("sacct", "-n", "-P", "-X", "-D", "-j", str(number), "-o", columns)
    except (Refused, NoSlurm):  # "Slurm accounting storage is disabled": a fact about the site
        return None
    lines = [line for line in answer.splitlines() if line.strip()]
    if not lines:
        return None
    state, *rest = lines[-1].split("|")
    return Job(number, _word(state), "", *rest)


def _numbers_of(name: str) -> list[int]:
    return [int(line) for line in ask("squeue", "-h", "-t", "all", f"--name={name}", "-o", "%A").split()]


def _answer(command: Sequence[str], passed: Sequence[str] | None = None) -> subprocess.CompletedProcess[str]:
    variables = environment() if passed is None else job_environment(passed)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=variables, stdin=subprocess.DEVNULL, timeout=_TIMEOUT_S
        )
    except FileNotFoundError:
        raise NoSlurm(f"no {command[0]} here: this machine is no node of a Slurm cluster; use --on local") from None
    except subprocess.TimeoutExpired:
        raise NoSlurm(f"{command[0]} did not answer within {_TIMEOUT_S:g} s") from None
    if done.returncode:
        words = _words(done.stderr or done.stdout)
        if _UNREACHABLE.search(words):
            raise NoSlurm(f"Slurm's controller does not answer: {words}")
        raise Refused(f"{command[0]}: {words or f'exit code {done.returncode}'}")
    return done


def _word(state: str) -> str:
    """`CANCELLED by 123` and `CANCELLED+` are CANCELLED."""
    return state.split()[0].rstrip("+") if state.strip() else "UNKNOWN"


def _words(stderr: str) -> str:
    """Slurm's message in one line, without the program's name before each."""
    lines = [re.sub(r"^\w+: (error: |fatal: )?", "", line).strip() for line in stderr.splitlines()]
    return "; ".join(line for line in lines if line)


def date(text: str) -> datetime | None:
    """A date as Slurm writes it, None if it is none."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
