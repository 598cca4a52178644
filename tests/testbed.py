"""Jobs on the test cluster: submit them, wait for events, and inspect what is left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from command import run_command

from firetrain.launch.site import sites
from firetrain.records import Run

TESTBED = Path(__file__).parents[1] / "slurm" / "testbed"
# the variable that has the path of the site `testbed` without preflight, which would start every rank's torch twice
QUICK = "FIRETRAIN_TEST_SITE"
# of each node, both ways; no test waits for it
LINK = "10gbit"


def missing() -> str | None:
    """The reason why there cannot be a test cluster here; None if there can."""
    if os.geteuid() != 0:
        return "a test cluster needs root"
    absent = [name for name in ("slurmctld", "slurmd", "sbatch", "ip", "tc") if shutil.which(name) is None]
    return f"no {', no '.join(absent)} (Debian: slurm-wlm and iproute2)" if absent else None


def slurm(*command: str) -> str:
    """The output of a Slurm command."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def launch(results: Path, *options: str) -> Run:
    """Submit a small run, without preflight if the options name no site; returns the run."""
    done = firetrain(
        "launch", "squeezenet-digits", "--on", "slurm", "--site", os.environ[QUICK], "--results", str(results), "--set",
        "target.top1=null", "--set", "log.every_steps=1", "--set", "reduction.bucket_mib=1", *options,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Run.open(next(Path(line[4:]) for line in done.stdout.splitlines() if line.startswith("run ")))


def site_with(tmp_path: Path, **changes: str) -> tuple[str, str]:
    """The option for the test cluster's site with other settings."""
    lines = [line for line in sites()["testbed"].read_text().splitlines() if line.partition(":")[0] not in changes]
    path = tmp_path / "changed.yaml"
    path.write_text("\n".join([*lines, *(f"{key}: {value}" for key, value in changes.items())]) + "\n")
    return "--site", str(path)


def until(what: Callable[[], object], limit_s: float = 120) -> None:
    """Wait until `condition()` is true; AssertionError after the limit."""
    deadline = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        time.sleep(0.2)


def gone(run: Run) -> bool:
    """Whether none of the run's jobs is running any more."""
    return not slurm("squeue", "-h", f"--name={run.name}", "-o", "%T").strip()


def no_jobs() -> bool:
    """Whether Slurm has no jobs."""
    return not slurm("squeue", "-h").strip()


def job_exit(run: Run) -> str:
    """The exit code of the last job according to Slurm."""
    shown = slurm("scontrol", "-o", "show", "job", str(run.facts()["jobs"][-1]))
    return shown.partition("ExitCode=")[2].split()[0]


def firetrain(*arguments: str, limit_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a firetrain command; what it says on stderr is shown if the test fails."""
    done = run_command(arguments, Path.cwd(), limit_s)
    print(f"firetrain {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}", file=sys.stderr)
    assert done.returncode >= 0 and "Traceback" not in done.stderr
    return done


def processes() -> set[str]:
    """The processes on the nodes besides Slurm's own."""
    found = set()
    for node in range(1, 5):
        for pid in slurm("ip", "netns", "pids", f"fire{node}").split():
            try:
                command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            if "firetrain" in command and not command.startswith(("slurmd", "slurmstepd")):
                found.add(f"fire{node}: {command}")
    return found


def all_idle() -> bool:
    """Whether the controller answers, and all nodes are idle."""
    done = subprocess.run(["sinfo", "-h", "-N", "-p", "debug", "-o", "%T"], capture_output=True, text=True)
    return done.stdout.split() == ["idle"] * 4


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
