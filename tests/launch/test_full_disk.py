"""A full disk ends a run with a clear message; no saved data is lost, and the run can be resumed when there is space."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import Command
from launched import Launch, wait_for
from needs import need

from firetrain.checkpoint import load, newest
from firetrain.cluster import SystemClock
from firetrain.config import load_config
from firetrain.errors import CannotWrite
from firetrain.records import Run
from firetrain.records.file import write_whole

MIB = 1 << 20
OPTIONS = (
    "--ranks-per-node", "2", "--set", "target.top1=null", "--set", "target.max_epochs=4", "--set", "log.every_steps=1",
)  # fmt: skip


class Disk:
    """A real file system in memory, whose size the test sets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)], check=True)

    def resize(self, mib: float) -> None:
        subprocess.run(["mount", "-o", f"remount,size={int(mib * 1024)}k", str(self.path)], check=True)

    def fill(self) -> None:
        """Fill the disk to the last byte."""
        with (self.path / "ballast").open("wb", buffering=0) as file:
            for size in (MIB, 4096, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    pass


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    need(None if os.geteuid() == 0 else "mounting a small file system needs root")
    need(None if shutil.which("mount") else "no mount here")
    made = Disk(tmp_path / "disk")
    yield made
    subprocess.run(["umount", "--lazy", str(made.path)], check=True)


def end_on_a_full_disk(run: Launch, disk: Disk, sign: str) -> tuple[int, str]:
    """The exit code and the output of a run whose disk is filled as soon as a file of its folder appears."""
    try:
        wait_for(lambda: list(disk.path.glob(f"results/*/{sign}")), sign)
        disk.fill()
        code, out, _ = run.end(60)
    finally:
        run.kill()
    return code, out


def drafts(folder: Path) -> list[Path]:
    return list(folder.rglob("*.draft"))


def test_a_checkpoint_that_does_not_fit_leaves_the_one_before_it(
    disk: Disk, tmp_path: Path, firetrain: Command
) -> None:
    disk.resize(12)  # two checkpoints of squeezenet-digits fit, and a third does not
    results = disk.path / "results"
    run = Launch(tmp_path, *OPTIONS, "--results", str(results), "--set", "checkpoint.every_epochs=1")
    try:
        code, out, _ = run.end(120)
    finally:
        run.kill()
    (folder,) = results.iterdir()
    assert code == 74, out
    assert (
        "No space left on device; the checkpoint after step 90 is complete. All ranks ended after step 135." in out
    ), out
    assert f"firetrain launch --resume {folder}" in out and "Traceback" not in out and out.count("No space left") == 1
    logs = [path.read_text() for path in sorted((folder / "attempt-0" / "logs").iterdir())]
    assert len(logs) == 2 and all("No space left on device" in log and "lost" not in log for log in logs), logs
    path, wrong = newest(folder / "checkpoints")
    assert path and "00000090" in path.name and not wrong and load(path)["clocks"]["step"] == 90
    assert not drafts(folder) and not (folder / ".reserve").exists()
    told = firetrain("status", str(folder)).stdout
    assert "failed: cannot write" in told and "No space left on device" in told
    disk.resize(64)
    done = firetrain("launch", "--resume", str(folder))
    assert done.returncode == 0, done.stderr
    assert Run.open(folder).summary()["steps"] == 180 and Run.open(folder).summary()["attempts"] == 2


def test_parameter_servers_and_their_workers_end_too(disk: Disk, tmp_path: Path, firetrain: Command) -> None:
    results, options = disk.path / "results", (*OPTIONS, "--ranks-per-node", "4", "--set", "checkpoint.every_epochs=1")
    strategy = ("--set", "strategy.name=parameter-server:policy=async,servers=2", "--set", "target.max_epochs=4")
    run = Launch(tmp_path, *options, *strategy, "--results", str(results))
    code, out = end_on_a_full_disk(run, disk, "checkpoints/step-*.pt")
    (folder,) = results.iterdir()
    assert code == 74 and out.count("No space left") == 1 and "All ranks ended after step" in out, out
    logs = [path.read_text() for path in sorted((folder / "attempt-0" / "logs").iterdir())]
    assert len(logs) == 4 and "No space left on device" in logs[0] and not any("lost" in log for log in logs), logs
    assert not any("Traceback" in text for text in (out, *logs)) and not drafts(folder)
    (disk.path / "ballast").unlink()
    done = firetrain("launch", "--resume", str(folder))
    assert done.returncode == 0, done.stderr
    assert Run.open(folder).summary()["attempts"] == 2


def test_a_line_of_metrics_that_cannot_be_written_ends_the_run_the_same_way(
    disk: Disk, tmp_path: Path, firetrain: Command
) -> None:
    results = disk.path / "results"
    options = ("--set", "target.max_epochs=500")
    run = Launch(tmp_path, *OPTIONS, *options, "--results", str(results))
    code, out = end_on_a_full_disk(run, disk, "metrics.jsonl")
    (folder,) = results.iterdir()
    assert code == 74 and "metrics.jsonl: No space left on device; there is no checkpoint yet" in out, out
    assert "Traceback" not in out and not drafts(folder)
    assert "metrics.jsonl: No space left on device" in firetrain("status", str(folder)).stdout


@pytest.mark.parametrize("strategy", ["data-parallel", "parameter-server:policy=async"])
def test_a_disk_that_fills_when_a_run_begins_is_told_too(
    strategy: str, disk: Disk, tmp_path: Path, firetrain: Command
) -> None:
    """By whatever cannot write first: the launcher, a rank before it trains, or the first steps."""
    results = disk.path / "results"
    run = Launch(tmp_path, *OPTIONS, "--set", f"strategy.name={strategy}", "--results", str(results))
    code, out = end_on_a_full_disk(run, disk, ".reserve")
    (folder,) = results.iterdir()
    assert code == 74 and "Traceback" not in out, out
    assert "free some space" in out.lower() and re.search(
        rf"resume with firetrain launch --resume \S*{folder.name}", out
    ), out
    told = firetrain("status", str(folder)).stdout
    assert "failed: " in told and "free some space" in told.lower(), told
    still = firetrain("launch", "--resume", str(folder))
    assert still.returncode == 74 and "nothing was started or lost: free some space, then resume with" in still.stderr
    assert len(list(folder.glob("attempt-*"))) == 1
    (disk.path / "ballast").unlink()
    done = firetrain("launch", "--resume", str(folder))
    assert done.returncode == 0, done.stderr


def test_a_run_that_cannot_begin_leaves_nothing(disk: Disk, tmp_path: Path, firetrain: Command) -> None:
    disk.fill()
    results = disk.path / "results"
    results.mkdir(exist_ok=True)
    done = firetrain("launch", "squeezenet-digits", "--results", str(results))
    assert done.returncode == 73 and "No space left on device" in done.stderr and "Traceback" not in done.stderr
    assert list(results.iterdir()) == []


def test_a_file_stays_as_it_was_if_the_new_one_does_not_fit(disk: Disk) -> None:
    disk.resize(1)
    write_whole(disk.path / "file", b"before")
    with pytest.raises(CannotWrite, match="cannot write .*/file: No space left on device"):
        write_whole(disk.path / "file", b"x" * 2 * MIB)
    assert (disk.path / "file").read_bytes() == b"before" and not drafts(disk.path)


def test_a_run_with_a_long_record_can_still_say_how_it_ended(disk: Disk) -> None:
    """The record contains the uncommitted changes of a checkout, which may be long; in 0.1.0 the reserved space was too small."""
    loaded = load_config("quickstart")
    facts = {"machine": {"changes": "x" * 200_000}}
    run = Run.prepare(disk.path / "results" / "run", loaded, SystemClock().date(), facts)
    run.reserve()
    disk.fill()
    with pytest.raises(CannotWrite):
        run.update(state="failed")
    assert run.facts().get("state") is None and not drafts(run.path)
    run.release()
    run.update(state="failed", reason="cannot write metrics.jsonl")
    assert run.facts()["reason"] == "cannot write metrics.jsonl" and len(run.facts()["machine"]["changes"]) == 200_000


def test_packed_images_that_do_not_fit_leave_nothing(disk: Disk, firetrain: Command) -> None:
    disk.resize(1)
    out = disk.path / "packed"
    done = firetrain(
        "data", "pack", "quickstart", "--set", "data.name=synthetic", "--set", "data.image_size=64", "--out", str(out)
    )
    assert done.returncode == 73 and f"cannot write {out}: No space left on device" in done.stderr, done.stderr
    assert list(out.iterdir()) == []


def test_a_job_whose_disk_stays_full_tells_why_it_ends(disk: Disk) -> None:
    """The verdict on it cannot be written; its exit code and its log have it nevertheless."""
    run = Run(disk.path / "run")
    (run.path / "attempt-0" / "ranks").mkdir(parents=True)
    (run.path / "run.json").write_text('{"state": "running"}')
    (run.attempt / "ranks" / "0000.exit").write_text("1.0 0 node0 74\n")
    disk.fill()
    words = ["--tasks", "1", "--srun-code", "74", "--requeues-left", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "firetrain.launch.verdict", str(run.path), *words],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "exit 74\n"), done.stderr
    assert "rank 0 on node0" in done.stderr and "Traceback" not in done.stderr
