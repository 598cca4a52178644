"""Submission: once and not twice, in segments, and with suitable settings."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from testbed import firetrain, gone, launch, slurm, until

from firetrain.records import Run

# a case that cannot be provoked: the controller accepts a job, but its answer is lost
LOST_ANSWER = """#!/bin/bash
case " $* " in
  *" --parsable "*)
    {sbatch} "$@" >/dev/null
    echo "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)" >&2
    exit 1 ;;
esac
exec {sbatch} "$@"
"""
AWAY = """#!/bin/bash
case " $* " in *" --parsable "*)
  echo "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)" >&2
  exit 1 ;;
esac
exec {sbatch} "$@"
"""


# the same, but afterwards it cannot be found out whether the job was accepted
MUTE = """#!/bin/bash
echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2
exit 1
"""


def with_sbatch(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    (folder / "sbatch").write_text(script.format(sbatch=shutil.which("sbatch")))
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_job_whose_number_was_lost_is_found_and_not_submitted_twice(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_sbatch(LOST_ANSWER, tmp_path / "bin", monkeypatch)
    run = launch(results, "--nodes", "1", "--ranks-per-node", "1", "--set", "target.max_epochs=100")
    (number,) = slurm("squeue", "-h", "-t", "all", f"--name={run.name}", "-o", "%A").split()
    assert run.facts()["jobs"] == [int(number)]
    slurm("scancel", number)
    until(lambda: gone(run))


def test_what_nobody_can_say_is_not_said_and_not_submitted_again(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = os.environ["PATH"]
    with_sbatch(LOST_ANSWER, tmp_path / "bin", monkeypatch)
    (tmp_path / "bin" / "squeue").write_text(MUTE)
    (tmp_path / "bin" / "squeue").chmod(0o755)
    command = [sys.executable, "-m", "firetrain", "launch", "quickstart", "--on", "slurm", "--site", "testbed"]
    done = subprocess.run([*command, "--results", str(results)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 69 and "Slurm may have accepted the job" in done.stderr
    assert "nothing was submitted" not in done.stderr and "the script is in" in done.stderr
    monkeypatch.setenv("PATH", path)
    (folder,) = results.iterdir()
    (number,) = slurm("squeue", "-h", "-t", "all", f"--name={folder.name}", "-o", "%A").split()
    slurm("scancel", number)


def test_a_controller_that_goes_away_in_between_is_asked_again_and_the_script_kept(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_sbatch(AWAY, tmp_path / "bin", monkeypatch)
    command = [sys.executable, "-m", "firetrain", "launch", "quickstart", "--on", "slurm", "--site", "testbed"]
    done = subprocess.run([*command, "--results", str(results)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 69, done.stderr
    assert "controller does not answer" in done.stderr and "nothing was submitted; the script is in" in done.stderr
    (folder,) = results.iterdir()
    assert (folder / "job.sh").exists() and Run.open(folder).facts()["state"] == "failed"
    assert slurm("squeue", "-h", "-t", "all", f"--name={folder.name}", "-o", "%A") == ""


def test_segments_follow_one_another_until_the_run_is_done(results: Path) -> None:
    run = launch(
        results, "--nodes", "1", "--ranks-per-node", "2", "--segments", "3", "--exclude", "fire1", "--set", "target.max_epochs=2",
    )  # fmt: skip
    first, second, third = run.facts()["jobs"]
    assert "Dependency" in slurm("squeue", "-h", "-j", str(second), "-o", "%r")
    until(lambda: len(run.metrics("step")) > 3)
    (run.path / "STOP").touch()  # like the signal before the walltime
    until(lambda: run.summary() and gone(run))
    assert run.summary()["attempts"] == 2 and run.facts()["hosts"] != ["fire1"]
    assert "is already complete" in (run.path / f"job-{third}.log").read_text()
    assert first < second < third


def test_a_site_is_listed_shown_and_checked_against_the_cluster(tmp_path: Path) -> None:
    listed = firetrain("site", "list").stdout
    assert all(name in listed for name in ("generic", "testbed", "jean-zay", "perlmutter")) and "unverified" in listed
    assert "interface: eth0" in firetrain("site", "show", "testbed").stdout
    # the test's own folder is under /tmp, which this site says is shared
    assert "testbed fits this cluster" in firetrain("site", "check", "testbed", "--nodes", "4").stdout
    for_scripts = json.loads(firetrain("site", "check", "testbed", "--nodes", "4", "--json").stdout)
    assert (for_scripts["site"], for_scripts["nodes"], for_scripts["ranks_per_node"]) == ("testbed", 4, 1)
    wrong = firetrain("site", "check", "perlmutter", "--nodes", "9")
    assert wrong.returncode == 2 and "exceeds the limit" in wrong.stderr and "9 nodes requested" in wrong.stderr
