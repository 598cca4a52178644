"""Ranks start together and end together, whatever the reason for the end, and the first failure is named."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from command import Command
from launched import LONG, Launch, RealLaunch, stop, wait_for

from firetrain.cli.main import main
from firetrain.cluster import World
from firetrain.cluster.memory import RANK_BYTES, memory_bytes
from firetrain.cluster.parent import LAUNCHER
from firetrain.launch.attempt import Attempt, _culprit, run_ranks

LAUNCH = RealLaunch


def test_a_killed_rank_ends_all_others_within_ten_seconds_and_is_named(launch: Callable[..., Launch]) -> None:
    run = launch("--ranks-per-node", "3", *LONG)
    run.wait_until_training()
    os.kill(run.ranks()[1], signal.SIGKILL)
    code, out, seconds = run.end()
    assert code == 1 and seconds < 10
    assert "rank 1 failed first: killed by signal 9 (SIGKILL)" in out and "the other 2 ranks were stopped" in out
    assert "rank-0001.log" in out and "Traceback" not in out
    assert run.ranks() == {}
    facts = json.loads((run.run / "run.json").read_text())
    assert facts["state"] == "failed" and facts["reason"].startswith("rank 1 failed first")
    assert "to resume" not in out, "there is no checkpoint"


def test_what_a_killed_rank_has_left_can_be_gone_on_with_by_the_command_that_is_told(
    launch: Callable[..., Launch], firetrain: Command
) -> None:
    run = launch("--ranks-per-node", "2", *LONG, "--set", "checkpoint.every_steps=5")
    run.wait_until_training()
    wait_for(lambda: list((run.run / "checkpoints").glob("step-*.pt")), "a checkpoint")
    os.kill(run.ranks()[1], signal.SIGKILL)
    code, out, _ = run.end()
    assert code == 1
    command = f"to resume: firetrain launch --resume results/{run.run.name}"
    assert command in out
    assert command in firetrain("status", str(run.run)).stdout


@pytest.mark.parametrize("strategy", ["data-parallel", "one-weird-trick", "pipeline:micro_batches=2"])
def test_a_rank_that_hears_nothing_is_ended_too(launch: Callable[..., Launch], strategy: str) -> None:
    placed = ("--set", "model.name=lenet", "--set", f"strategy.name={strategy}")
    run = launch("--ranks-per-node", "3", *placed, *LONG)
    run.wait_until_training()
    ranks = run.ranks()
    stop(ranks[2])  # it reacts neither to SIGTERM nor to a closed connection
    os.kill(ranks[1], signal.SIGKILL)
    code, out, seconds = run.end()
    assert code == 1 and seconds < 10 and "rank 1 failed first" in out
    assert run.ranks() == {}


def test_ranks_end_with_a_launcher_that_is_killed_while_they_start(launch: Callable[..., Launch]) -> None:
    run = launch("--ranks-per-node", "3", *LONG)
    wait_for(lambda: len(run.ranks()) == 3, "three processes")
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    wait_for(lambda: run.ranks() == {}, "the end of all ranks", limit_s=10)


def test_a_rank_whose_launcher_was_killed_before_it_could_ask_for_its_end_does_not_start() -> None:
    other = {**os.environ, LAUNCHER: "1"}  # a process that is not its parent
    done = subprocess.run([sys.executable, "-m", "firetrain", "--version"], env=other, capture_output=True, text=True)
    assert done.returncode == -signal.SIGTERM and done.stdout == ""


def test_a_batch_of_more_images_than_there_are_takes_no_more_memory_than_these() -> None:
    words = ("--set", "model.name=lenet", "--set", "data.image_size=28", "--set", "target.top1=null",
             "--set", "target.max_epochs=1", "--set", "batch.global_size=16777216")  # fmt: skip
    command = [sys.executable, "-m", "firetrain", "train", "squeezenet-digits", *words]
    limit = partial(resource.setrlimit, resource.RLIMIT_AS, (10 << 30, 10 << 30))  # the batch would have 39 GB
    # CUDA would reserve more addresses than the limit allows
    own = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=own, preexec_fn=limit, check=False)
    assert done.returncode == 0, done.stderr


def test_more_ranks_than_fit_into_the_memory_are_refused_before_anything_is_started(
    firetrain: Command, tmp_path: Path
) -> None:
    whole = memory_bytes()
    if whole is None or whole // RANK_BYTES >= 512:
        return  # a machine with so much memory may start as many ranks as any
    sizes = ("--nodes", "256", "--set", "batch.global_size=1024", "--set", "reduction.name=native")
    for words in (
        ("launch", "quickstart", *sizes), ("launch", "quickstart", *sizes, "--dry-run"), ("bench", "link", "--ranks", "1024"),
        ("compare", "quickstart", "--set", "batch.global_size=1024", "--nodes", "1,1024", "--reductions", "native"),
    ):  # fmt: skip
        done = firetrain(*words)
        assert done.returncode == 2 and "1024 ranks on this machine would use" in done.stderr, done.stderr
    assert not list(tmp_path.glob("results/*/run.json"))


def test_who_only_lost_a_peer_is_not_named_first(tmp_path: Path) -> None:
    endings = ("sys.exit(69)", "time.sleep(0.5); sys.exit(1)", "sys.exit(69)")
    ranks = [subprocess.Popen([sys.executable, "-c", f"import sys, time; {ending}"]) for ending in endings]
    wait_for(lambda: ranks[0].poll() is not None, "the first end")
    assert _culprit(ranks, range(3), tmp_path) == (1, 1)


@pytest.mark.parametrize(("of_server", "named"), [(5, (0, 5)), (69, (1, 2))])
def test_a_worker_that_others_can_do_without_is_named_only_if_no_needed_rank_failed(
    of_server: int, named: tuple[int, int], tmp_path: Path
) -> None:
    """Rank 0 owns the weights. If it only lost its workers, the one that failed is the cause."""
    ranks = [subprocess.Popen([sys.executable, "-c", f"import sys; sys.exit({code})"]) for code in (of_server, 2)]
    wait_for(lambda: all(one.poll() is not None for one in ranks), "both ends")
    assert _culprit(ranks, [0], tmp_path) == named


LOSES_THE_SERVER_ONCE = """
import os, pathlib, sys, time
came = pathlib.Path("came")
if os.environ["FIRETRAIN_RANK"] == "1":
    first = not came.exists()
    came.touch()
    sys.exit(69 if first else 0)
while not pathlib.Path("over").exists():
    time.sleep(0.01)
"""


@pytest.mark.parametrize("server_ends", [False, True])
def test_a_worker_that_has_lost_a_server_is_started_again_unless_that_has_ended(
    server_ends: bool, tmp_path: Path
) -> None:
    said, came = list[str](), tmp_path / "came"

    def tick() -> None:
        if said or (server_ends and came.exists()):
            (tmp_path / "over").touch()

    alone = Attempt(
        World.even(1, 2), tmp_path, tick=tick, expendable=[1], say=said.append, program=[sys.executable, "-c"],
        folder_of_ranks=tmp_path,
    )  # fmt: skip
    run_ranks([LOSES_THE_SERVER_ONCE], alone)
    assert said == ([] if server_ends else ["rank 1: exit code 69, because it had lost a server; started again"])


def test_an_exception_in_a_rank_is_shown_with_the_end_of_its_log(
    firetrain: Callable[..., object], tmp_path: Path
) -> None:
    (tmp_path / "train" / "a").mkdir(parents=True)
    (tmp_path / "test" / "a").mkdir(parents=True)
    from PIL import Image

    for number in range(8):
        Image.new("RGB", (16, 16)).save(tmp_path / "train" / "a" / f"{number}.png")
        Image.new("RGB", (16, 16)).save(tmp_path / "test" / "a" / f"{number}.png")
    (tmp_path / "train" / "a" / "5.png").write_bytes(b"no image")
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nmodel: {name: lenet}\ndata: {name: folders, root: ., image_size: 16}\n"
        "batch: {global_size: 8}\nlearning_rate: {base: 0.01}\n"
    )
    started_s = time.monotonic()
    done = firetrain("launch", "./mine.yaml", "--ranks-per-node", "3")
    assert done.returncode == 1 and time.monotonic() - started_s < 60
    assert re.search(r"rank \d failed first: exit code 1; the other 2 ranks were stopped", done.stderr)
    assert "5.png: not an image of a known format" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_the_ranks_save_and_the_way_on_is_told(
    launch: Callable[..., Launch], number: signal.Signals, code: int
) -> None:
    run = launch("--ranks-per-node", "2", *LONG)
    run.wait_until_training()
    run.process.send_signal(number)
    got, out, seconds = run.end(30)
    assert got == code and seconds < 20
    assert f"cancelled by {number.name}; stopped after step" in out and "Traceback" not in out
    assert f"to resume: firetrain launch --resume results/{run.run.name}" in out
    assert run.ranks() == {} and list((run.run / "checkpoints").glob("step-*.pt"))
    assert json.loads((run.run / "run.json").read_text())["state"] == "stopped"


def test_a_second_signal_does_not_wait(launch: Callable[..., Launch]) -> None:
    run = launch("--ranks-per-node", "2", *LONG)
    run.wait_until_training()
    for pid in run.ranks().values():
        stop(pid)  # they cannot save
    run.process.send_signal(signal.SIGINT)
    wait_for((run.run / "STOP").exists, "the ranks were asked to save")
    run.process.send_signal(signal.SIGINT)
    code, out, seconds = run.end()
    assert code == 130 and seconds < 10
    assert "cancelled by SIGINT; all ranks were stopped" in out and "launch --resume" in out and "Traceback" not in out
    assert run.ranks() == {}
    assert json.loads((run.run / "run.json").read_text())["state"] == "cancelled"


def test_ranks_do_not_outlive_a_launcher_that_was_killed(launch: Callable[..., Launch]) -> None:
    run = launch("--ranks-per-node", "2", *LONG)
    run.wait_until_training()
    assert len(run.ranks()) == 2
    run.process.kill()
    wait_for(lambda: run.ranks() == {}, "all ranks gone", 10)


def test_two_launches_at_once_do_not_meet(launch: Callable[..., Launch]) -> None:
    limits = ("--set", "target.max_steps=6", "--set", "target.top1=null")
    both = [launch("--ranks-per-node", "2", "--set", f"seed={seed}", *limits) for seed in (1, 2)]
    ends = [one.end(120) for one in both]
    assert [code for code, _, _ in ends] == [0, 0], ends
    runs = sorted(both[0].folder.glob("results/*/summary.json"))
    assert len(runs) == 2 and all(json.loads(path.read_text())["world_size"] == 2 for path in runs)


def test_a_rank_s_output_is_in_its_own_log_and_the_terminal_tells_the_progress(launch: Callable[..., Launch]) -> None:
    run = launch("--nodes", "2", "--ranks-per-node", "1", "--set", "target.max_epochs=1", "--set", "target.top1=null")
    code, out, _ = run.end(120)
    assert code == 0
    assert "2 ranks on 2 nodes, 1 each, nodes emulated on this machine; logs in attempt-0/logs" in out
    assert re.search(r"epoch 1: top-1 \d+\.\d\d%, loss \d", out)
    for words in (
        "images/s",
        "compute",
        "exposed communication",
        "waiting for data",
        "evaluation",
        "start-up",
        "next:",
    ):
        assert words in out
    assert "parameters" in (run.run / "attempt-0" / "logs" / "rank-0000.log").read_text()
    assert (run.run / "attempt-0" / "logs" / "rank-0001.log").exists()


def test_a_dry_run_starts_nothing_and_prints_a_config_that_can_be_run(
    firetrain: Callable[..., object], tmp_path: Path
) -> None:
    done = firetrain("launch", "quickstart", "--ranks-per-node", "3", "--dry-run")
    assert done.returncode == 0 and "# 3 ranks on 1 node" in done.stdout
    assert not (tmp_path / "results").exists()
    (tmp_path / "copy.yaml").write_text(done.stdout)
    assert firetrain("config", "check", "./copy.yaml").returncode == 0


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        ("pipeline:stages=3", "stages x replicas must be the number of ranks (stages: 3, replicas: 1, ranks: 4)"),
        ("pipeline:schedule=1f1b", "set micro_batches to 2 or more, or omit schedule"),
        ("pipeline:micro_batches=33", "a batch of 32 images cannot be cut into 33 micro-batches"),
        ("branch-parallel", "branch-parallel needs modules with branches, and this model has none"),
        ("three.yaml", "three.yaml places a model on 3 ranks, but there are 4"),
    ],
)
def test_a_strategy_that_does_not_suit_the_run_is_told_before_ranks_start(
    firetrain: Command, tmp_path: Path, strategy: str, told: str
) -> None:
    (tmp_path / "three.yaml").write_text("ranks: 3\ndefault: {images: 3}\n")
    lenet = ("--ranks-per-node", "4", "--set", "model.name=lenet", "--set", f"strategy.name={strategy}")
    done = firetrain("launch", "quickstart", *lenet)
    assert done.returncode == 2 and told in done.stderr, done.stderr
    assert not (tmp_path / "results").exists()


def test_under_plain_torchrun(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "firetrain",
        "train", "squeezenet-digits", "--set", "target.max_steps=4", "--set", "target.top1=null",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "2 ranks on 1 node" in done.stdout and done.stdout.count("done: top-1") == 1
    (summary,) = tmp_path.glob("results/*/summary.json")
    assert json.loads(summary.read_text())["world_size"] == 2


def test_as_a_single_process(firetrain: Callable[..., object], tmp_path: Path) -> None:
    done = firetrain("train", "squeezenet-digits", "--set", "target.max_steps=4", "--set", "target.top1=null")
    assert done.returncode == 0, done.stderr
    (facts,) = tmp_path.glob("results/*/run.json")
    assert json.loads(facts.read_text())["state"] == "completed"


def test_a_folder_that_cannot_be_written_is_an_error_of_its_own(
    firetrain: Callable[..., object], tmp_path: Path
) -> None:
    (tmp_path / "results").write_text("a file")
    done = firetrain("launch", "quickstart", "--results", "results/below")
    assert done.returncode == 73
    assert "cannot create the run's directory" in done.stderr and "Traceback" not in done.stderr


def test_a_run_goes_on_if_nobody_reads_its_output_any_more(launch: Callable[..., Launch]) -> None:
    """For example in `firetrain launch ... | head -1`."""
    run = launch("--ranks-per-node", "2", "--set", "target.max_epochs=2", "--set", "target.top1=null")
    assert run.process.stdout is not None and run.process.stdout.readline()
    run.process.stdout.close()
    wait_for(lambda: run.process.poll() is not None, "the end of the launcher", 90)
    assert json.loads((run.run / "summary.json").read_text())["epochs"] == 2 and run.ranks() == {}
    assert json.loads((run.run / "run.json").read_text())["state"] == "completed"


def test_an_interruption_before_anything_was_started_has_the_code_of_its_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("firetrain.config.load_config", interrupt)
    done = CliRunner().invoke(main, ["launch", "quickstart"])
    assert done.exit_code == 130 and "firetrain: interrupted" in done.output


@pytest.mark.parametrize(
    "command", [("launch",), ("bench", "step"), ("bench", "profile", "--ranks", "1")], ids=lambda words: " ".join(words)
)
@pytest.mark.parametrize(("root", "told"), [("nowhere", "there is nothing at"), ("empty", "is empty")])
def test_images_that_are_not_there_are_told_before_ranks_start(
    command: tuple[str, ...], root: str, told: str, tmp_path: Path, firetrain: Command
) -> None:
    (tmp_path / "empty").mkdir()
    done = firetrain(*command, "lenet-mnist", "--set", f"data.root={root}")
    assert done.returncode == 2 and f"data.root: {tmp_path / root}" in done.stderr.replace("there is nothing at ", "")
    assert told in done.stderr and "rank" not in done.stderr and {path.name for path in tmp_path.iterdir()} == {"empty"}
