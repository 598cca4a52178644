"""External events: walltime, hanging rank, lost node, unreachable controller."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from command import ForkedCommand
from paced import AT_ONCE, PACED
from testbed import (
    TESTBED,
    alive,
    all_idle,
    firetrain,
    gone,
    job_exit,
    launch,
    processes,
    site_with,
    slurm,
    until,
)

import firetrain as firetrain_package
from firetrain.checkpoint import load
from firetrain.records import Run

FOLDER = Path("/run/firetrain-testbed")


def test_a_rank_that_hangs_ends_the_job_within_the_limit(results: Path, tmp_path: Path) -> None:
    run = launch(
        results, "--nodes", "2", "--ranks-per-node", "1", "--set", "target.max_epochs=200", "--set", "cluster.timeout_s=5",
        "--env", "FAULT=1:hang", "--env", f"PYTHONPATH={tmp_path / 'sabotage'}",
    )  # fmt: skip
    until(lambda: gone(run))
    assert job_exit(run) == "69:0"
    told = firetrain("status", str(run.path)).stdout
    assert "rank 1 hung (no exit record, node responds)" in told and "rank 0 lost rank 1 in step" in told, told
    assert not processes()


def kept(run: Path, after: int = 0) -> dict[int, Path]:
    """The checkpoints of whole epochs after a step, by step; a stop may have left other ones."""
    found = {int(path.name.split("-")[1]): path for path in (run / "checkpoints").glob("step-*.pt")}
    return {step: path for step, path in found.items() if step % STEPS == 0 and step > after}


STEPS = 45  # per epoch of 1,437 digits in batches of 32


def test_a_run_whose_time_is_up_goes_on_with_the_bits_of_one_that_was_left_alone(results: Path, tmp_path: Path) -> None:
    """Slurm sends its signal 60 s before a walltime of two minutes; it may come up to a minute early."""
    run = launch(
        results, "--nodes", "2", "--ranks-per-node", "1", "--time", "00:02:00", "--set", "checkpoint.every_epochs=2",
        "--set", "checkpoint.keep=1000", "--set", "batch.global_size=32", *PACED,
    )  # fmt: skip
    until(lambda: run.attempts == 2 or gone(run), 200)
    assert run.attempts == 2 and not run.summary()
    assert (run.path / "attempt-0" / "verdict.txt").read_text() == "saved; requeued\n"
    assert (run.path / "attempt-0" / "logs" / "rank-0000.log").read_text().count("stopped after step") == 1
    stopped_after = max(row["step"] for row in run.metrics("step"))
    until(lambda: kept(run.path, after=stopped_after), 120)
    firetrain("cancel", str(run.path))
    until(lambda: gone(run))
    (attempt,) = [row for row in run.lines({"attempt"}) if row["attempt"] == 1]
    assert attempt["lost_s"] == 0 and attempt["step"] >= stopped_after
    steps = [row["step"] for row in run.metrics("step")]
    assert steps == list(range(1, max(steps) + 1))
    last, path = min(kept(run.path, after=stopped_after).items())  # of the second attempt
    whole = ForkedCommand(("launch", str(run.config_path), *AT_ONCE, "--results", str(tmp_path / "whole")), tmp_path)
    try:
        until(
            lambda: [one for one in (tmp_path / "whole").glob("*") if last in kept(one)] or whole.poll() is not None,
            300,
        )
    finally:
        whole.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            whole.wait(60)
        whole.kill()
    (here,) = (tmp_path / "whole").iterdir()
    weights = [load(one)["model"] for one in (path, kept(here)[last])]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
    losses = [
        {row["step"]: row["loss"] for row in one.metrics("step") if row["step"] <= last} for one in (run, Run(here))
    ]
    assert losses[0] == losses[1] and len(losses[0]) == last


def killed(node: str) -> list[str]:
    """Kill what runs on a node, as a power cut does, and return it; a process may end as its parent is killed."""
    pids = slurm("ip", "netns", "pids", node).split()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    return pids


@pytest.mark.parametrize(
    ("number", "strategy"),
    [(1, "tensor-parallel:split=alternate"), (0, "data-parallel")],
    ids=["another node", "the node of rank 0 and of the script"],
)
def test_a_job_whose_node_is_lost_goes_on_elsewhere(number: int, strategy: str, results: Path) -> None:
    run = launch(
        results, "--nodes", "2", "--ranks-per-node", "1", *PACED, "--set", "target.max_epochs=6", "--set",
        "checkpoint.every_epochs=1", "--set", "cluster.timeout_s=10", "--set", f"strategy.name={strategy}",
    )  # fmt: skip
    until(lambda: list((run.path / "checkpoints").glob("step-*.pt")))
    nodes = slurm("squeue", "-h", f"--name={run.name}", "-o", "%N").strip()
    lost = slurm("scontrol", "show", "hostnames", nodes).split()[number]
    until(lambda: not killed(lost))
    try:
        until(lambda: run.summary() and gone(run), 240)
        assert run.summary()["attempts"] == 2 and run.summary()["steps"] == 270
        assert lost not in run.facts()["hosts"], "elsewhere"
        assert "resuming after step" in run.log(0).read_text()
    finally:
        subprocess.run([TESTBED, "restart-node", lost], check=True)
        until(all_idle)


def test_a_node_that_cannot_reach_the_others_is_named_before_anything_is_trained(results: Path) -> None:
    ports = (
        "ipproto",
        "tcp",
        "dport",
        "20000-29999",
        "blackhole",
    )  # the ports at which rank 0 listens according to the site; Slurm's own ports are open
    slurm("ip", "-n", "fire2", "rule", "add", *ports)
    try:
        run = launch(results, "--site", "testbed", "--nodes", "2", "--ranks-per-node", "1", "--exclude", "fire[3-4]")
        until(lambda: gone(run))
    finally:
        slurm("ip", "-n", "fire2", "rule", "del", *ports)
    assert job_exit(run) == "69:0"
    log = (run.path / f"job-{run.facts()['jobs'][0]}.log").read_text()
    assert "fire2 (rank 1): cannot reach rank 0 at fire1" in log and "--exclude fire2" in log, log
    assert "nothing was trained" in log and not run.log(0).exists()


def unfit(results: Path, *options: str) -> str:
    """The log of a job whose preflight rejects its nodes."""
    on_two = ("--nodes", "2", "--ranks-per-node", "1", "--exclude", "fire[3-4]")
    run = launch(results, "--site", "testbed", *on_two, *options)
    until(lambda: gone(run))
    log = (run.path / f"job-{run.facts()['jobs'][0]}.log").read_text()
    assert job_exit(run) == "69:0" and "nothing was trained" in log and not run.log(0).exists(), log
    for command in ("status", "logs"):  # both show the reason too
        told = firetrain(command, str(run.path))
        assert told.returncode == 0 and "nothing was trained" in told.stdout and "fire2 (rank 1): " in told.stdout, told
    return log


def test_a_node_without_the_site_s_interface_is_named(results: Path, tmp_path: Path) -> None:
    slurm("ip", "-n", "fire1", "link", "add", "fast0", "type", "veth", "peer", "name", "fast1")
    try:
        log = unfit(results, *site_with(tmp_path, interface="fast0"))
    finally:
        slurm("ip", "-n", "fire1", "link", "del", "fast0")
    assert "fire2 (rank 1): no network interface fast0 on this node (it has lo, " in log and "eth0" in log
    assert "set the site's interface to one that all nodes have, or exclude the node (--exclude fire2)" in log
    assert "fire1 (rank 0): no network interface" not in log


def test_a_node_without_enough_gpus_is_named(results: Path, tmp_path: Path) -> None:
    """Slurm allocates GPUs here, but torch sees none of them."""
    log = unfit(results, *site_with(tmp_path, gpus="{request: gpus-per-node}"))
    for node in ("fire1", "fire2"):
        assert f"{node} (rank " in log and f"exclude the node (--exclude {node})" in log
    assert (
        "torch sees 0 of 1 GPU that this node needs, one per rank" in log
        and "set the site's gpus.request to none" in log
    )


def test_a_node_that_does_not_see_the_images_or_has_another_firetrain_is_named(results: Path, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "nothing").mkdir()
    package = Path(firetrain_package.__file__).parent
    shutil.copytree(package, tmp_path / "other", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "other" / "__init__.py").write_text('__version__ = "0.0.9"\n')
    options = ("--set", "data.name=folders", "--set", f"data.root={tmp_path / 'images' / 'set'}")
    for split in ("train", "val"):
        (tmp_path / "images" / "set" / split / "cat").mkdir(parents=True)
    with hidden("fire2", tmp_path / "images", tmp_path / "nothing"):
        log = unfit(results, *options)
    assert f"fire2 (rank 1): data.root: there is nothing at {tmp_path / 'images' / 'set'}" in log, log
    assert "set it to a folder that has the images on all nodes, or exclude the node (--exclude fire2)" in log
    assert "fire1 (rank 0)" not in log
    with hidden("fire2", package, tmp_path / "other"):
        log = unfit(results, *options)
    ours = firetrain_package.__version__
    assert f"fire2 (rank 1): firetrain 0.0.9 is installed on this node, but the job was submitted by {ours}" in log, log
    assert "install that version, or exclude the node (--exclude fire2)" in log and "fire1 (rank 0)" not in log


@contextmanager
def hidden(node: str, place: Path, other: Path) -> Iterator[None]:
    """Mount `other` over `place` on one node, in the mount namespace of its slurmd."""
    pid = (FOLDER / f"slurmd-{node}.pid").read_text().strip()
    enter = ("nsenter", f"--mount=/proc/{pid}/ns/mnt")
    slurm(*enter, "mount", "--bind", str(other), str(place))
    try:
        yield
    finally:
        slurm(*enter, "umount", "--lazy", str(place))


@pytest.fixture
def controller_away() -> None:
    """Make the controller stop answering; the fixture restores it at its end."""
    pid = int((FOLDER / "slurmctld.pid").read_text())
    os.kill(pid, signal.SIGTERM)
    until(lambda: not alive(pid))
    yield
    subprocess.run(["slurmctld", "-f", str(FOLDER / "slurm.conf")], check=True)
    until(all_idle)


@pytest.mark.usefixtures("controller_away")
def test_a_controller_that_is_away_is_told_and_nothing_is_left(results: Path) -> None:
    on_it = ("--on", "slurm", "--site", "testbed", "--results", str(results))
    done = firetrain("launch", "quickstart", *on_it, limit_s=300)
    assert done.returncode == 69
    assert "controller does not answer" in done.stderr and "Traceback" not in done.stderr
    assert not results.exists()


def test_status_works_from_the_run_s_folder_when_slurm_does_not(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = launch(results, "--nodes", "1", "--ranks-per-node", "1", "--set", "target.max_steps=2")
    until(lambda: run.summary() and gone(run))
    monkeypatch.setenv("PATH", "/nowhere")
    assert firetrain("status", str(run.path)).stdout.startswith(f"{run.name}: completed")
    assert "resuming" not in firetrain("logs", str(run.path)).stdout
    (run.path / "summary.json").unlink()
    told = firetrain("status", str(run.path))
    assert told.returncode == 0 and "when last seen" in told.stdout
    assert Run.open(run.path).facts()["state"] == "completed"
