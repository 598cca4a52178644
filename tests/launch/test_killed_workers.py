"""Runs with parameter servers survive their workers, go on where they were stopped, and end with a server."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable

import pytest
from launched import Launch, wait_for

from firetrain.records import Run

LENET = ("--set", "model.name=lenet", "--set", "reduction.name=native")


def test_workers_that_average_once_are_not_taken_for_hanging(launch: Callable[..., Launch]) -> None:
    words = ("--ranks-per-node", "3", *LENET, "--set", "target.top1=null", "--set", "cluster.timeout_s=4")
    run = launch(*words, "--set", "target.max_epochs=500", "--set", "strategy.name=parameter-server:policy=average")
    wait_for(lambda: list(run.folder.glob("results/*/attempt-0/logs/rank-0000.log")), "the ranks have started")
    log = Run.open(run.run).log(0)
    wait_for(lambda: "learning rate" in log.read_text(), "training has begun")
    began_s = time.monotonic()
    wait_for(
        lambda: time.monotonic() > began_s + 10 or "no push arrived" in log.read_text(),
        "two and a half limits are over",
    )
    assert "no push arrived" not in log.read_text() and len(run.ranks()) == 3


SURVIVING = (
    *LENET, "--ranks-per-node", "4", "--set", "target.top1=0.9", "--set", "log.every_steps=1", "--set",
    "learning_rate.base=0.002", "--set", "checkpoint.every_steps=5", "--set", "cluster.timeout_s=20", "--set",
    "target.max_epochs=60",
)  # fmt: skip


def test_workers_that_compute_when_the_target_is_reached_end_well(launch: Callable[..., Launch]) -> None:
    early = ("--set", "target.top1=0.3", "--set", "checkpoint.every_steps=null")
    run = launch(*SURVIVING, *early, "--set", "strategy.name=parameter-server:policy=async")
    code, out, _ = run.end(100)
    logs = [path.read_text() for path in run.run.glob("attempt-0/logs/*")]
    assert code == 0 and len(logs) >= 3 and not any("firetrain:" in log for log in logs), (out, logs)


def test_a_killed_worker_keeps_nobody_from_the_target(launch: Callable[..., Launch]) -> None:
    run = launch(*SURVIVING, "--set", "strategy.name=parameter-server:policy=async,rate=staleness")
    wait_for(lambda: list(run.folder.glob("results/*/checkpoints/step-*.pt")), "a checkpoint")
    os.kill(run.ranks()[2], signal.SIGKILL)
    code, out, _ = run.end(150)
    assert code == 0 and Run.open(run.run).summary()["top1"] >= 0.9, out
    assert re.search(r"rank 2: killed by signal 9 \(SIGKILL\).*; started again", out), out


@pytest.mark.parametrize(
    ("policy", "killed"),
    [
        ("async,rate=staleness", 2), ("backup,spare=1", 2), ("ssp,staleness=3,rate=staleness", 2),
        ("ssp,staleness=3,rate=staleness,servers=2", 3),
    ],
)  # fmt: skip
def test_a_killed_worker_comes_back(launch: Callable[..., Launch], policy: str, killed: int) -> None:
    endless = ("--set", "target.top1=null", "--set", "target.max_epochs=500")
    run = launch(*SURVIVING, *endless, "--set", f"strategy.name=parameter-server:policy={policy}")
    wait_for(lambda: list(run.folder.glob("results/*/checkpoints/step-*.pt")), "a checkpoint")
    os.kill(run.ranks()[killed], signal.SIGKILL)
    found = Run.open(run.run)
    wait_for(lambda: "worker 1 takes part again" in found.log(0).read_text(), "the worker is back")
    before = found.metrics("step")[-1]["step"]
    wait_for(lambda: found.metrics("step")[-1]["step"] > before + 5, "the run goes on")
    run.process.send_signal(signal.SIGINT)
    code, out, _ = run.end(30)
    assert code == 130 and found.facts()["state"] == "stopped", out
    left = "goes on with 1 worker" if "servers=2" in policy else "goes on with 2 workers"
    assert any("worker 1 has ended" in text and left in text for text in found.facts()["warnings"])


def test_sync_ends_with_a_worker_that_dies(launch: Callable[..., Launch]) -> None:
    run = launch(*SURVIVING, "--set", "strategy.name=parameter-server")
    wait_for(lambda: list(run.folder.glob("results/*/checkpoints/step-*.pt")), "a checkpoint")
    os.kill(run.ranks()[2], signal.SIGKILL)
    code, out, seconds = run.end()
    assert code == 1 and seconds < 10 and "rank 2 failed first: killed by signal 9 (SIGKILL)" in out, out
    assert run.ranks() == {}


@pytest.mark.parametrize("rank", [0, 1])
def test_every_policy_ends_with_its_server(launch: Callable[..., Launch], rank: int) -> None:
    run = launch(*SURVIVING, "--set", "strategy.name=parameter-server:policy=async,servers=2")
    wait_for(lambda: list(run.folder.glob("results/*/checkpoints/step-*.pt")), "a checkpoint")
    os.kill(run.ranks()[rank], signal.SIGKILL)
    code, out, seconds = run.end(60)
    assert code == 1 and seconds < 30 and f"rank {rank} failed first: killed by signal 9 (SIGKILL)" in out, out
    assert run.ranks() == {}


@pytest.mark.parametrize("then", ["parameter-server:policy=async,servers=2,rate=staleness", "data-parallel"])
def test_a_stopped_run_goes_on_from_the_server_s_checkpoint(launch: Callable[..., Launch], then: str) -> None:
    first = launch(*SURVIVING, "--set", "strategy.name=parameter-server:policy=async,rate=staleness")
    wait_for(lambda: list(first.folder.glob("results/*/checkpoints/step-*.pt")), "a checkpoint")
    first.process.send_signal(signal.SIGINT)
    code, out, _ = first.end(30)
    run = Run.open(first.run)
    assert code == 130 and "stopped after step" in out and run.facts()["state"] == "stopped", out
    second = launch("--resume", str(first.run), "--set", f"strategy.name={then}")
    code, out, _ = second.end(150)
    assert code == 0 and run.summary()["top1"] >= 0.9, out
    steps = [row["step"] for row in run.metrics("step")]
    assert steps == sorted(set(steps)) and "resuming after step" in run.log(0).read_text()
