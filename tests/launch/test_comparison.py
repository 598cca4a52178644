"""Comparisons of reductions: failed trials are reported and the others continue; all numbers are those of the runs."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.util import find_spec
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from command import Command, run_command
from needs import need
from sabotage import write_sabotage

from firetrain.config.comparison import load_comparison, shipped_comparisons
from firetrain.launch.estimate import estimate_s
from firetrain.launch.trials import allocations_of
from firetrain.records import Run
from firetrain.report.comparison import collect

SMALL = ("squeezenet-digits", "--on", "local", "--steps", "3", "--warmup-steps", "1")
TINY = (
    "--set", "batch.global_size=8", "--set", "reduction.bucket_mib=1", "--set", "learning_rate.base=0.02",
    "--set", "learning_rate.warmup_epochs=0",
)  # fmt: skip


def compare(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_command(("compare", *SMALL, *TINY, *options), folder, 240)


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def assert_is_the_median(row: dict[str, Any], steps: list[list[dict[str, Any]]]) -> None:
    """The numbers of a row are medians over trials of the medians over steps; 8 images a step."""
    for key in ("step_s", "compute_s", "exposed_communication_s", "data_s"):
        expected = median(median(line[key] for line in lines) for lines in steps)
        assert row["value_s" if key == "step_s" else key] == pytest.approx(expected)
    assert row["images_per_s"] == pytest.approx(8 / row["value_s"])
    assert row["low_s"] <= row["value_s"] <= row["high_s"]


def test_a_trial_whose_rank_is_killed_is_told_the_rest_goes_on_and_it_is_made_up_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--reductions", "native,tree,powersgd:rank=1", "--nodes", "1,2", "--repeats", "2")
    folder = tmp_path / "results" / "comparisons" / "squeezenet-digits"
    with monkeypatch.context() as context:
        context.setenv("PYTHONPATH", str(write_sabotage(tmp_path / "sabotage")))
        context.setenv("FAULT", f"1:kill:{folder}/2x1/trials/*-tree-r1/metrics.jsonl")
        done = compare(tmp_path, *options)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 of 2 failed: rank 1 failed first: killed by signal 9 (SIGKILL)" in done.stdout.replace("\n", " "), (
        done.stdout
    )
    assert "repeat the command to run the missing trials" in done.stderr
    rows = json.loads((folder / "comparison.json").read_text())["rows"]
    assert {row["reduction"]: (row["failed"], row["unfinished"]) for row in rows if row["ranks"] == 2}["tree"] == (1, 0)
    states = {path.parent.name: Run(path.parent).facts()["state"] for path in folder.glob("*/trials/*/run.json")}
    assert [name for name, state in states.items() if state != "completed"] == [
        n for n in states if n.endswith("tree-r1")
    ]
    assert len(states) == 2 + 6 and len(list((folder / "2x1").glob("attempt-*"))) == 2

    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/trials/*/summary.json")}
    again = compare(tmp_path, *options)
    assert again.returncode == 0, again.stdout + again.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before, "what was complete was done again"
    assert_its_rows_are_those_of_its_trials(folder)
    other = compare(tmp_path, "--reductions", "native", "--nodes", "2")
    assert other.returncode == 2 and "contains another comparison" in other.stderr


def assert_its_rows_are_those_of_its_trials(folder: Path) -> None:
    """The comparison of the test above, after all of its trials."""
    found = json.loads((folder / "comparison.json").read_text())
    rows = {(row["reduction"], row["nodes"]): row for row in found["rows"]}
    assert set(rows) == {("one rank", 1), ("native", 2), ("tree", 2), ("powersgd:rank=1", 2)}
    for (reduction, nodes), row in rows.items():
        slug = reduction.replace(" ", "-").replace(":", "-")
        trials = sorted(folder.glob(f"{nodes}x1/trials/*-{slug}-r?"))
        steps = [[line for line in lines_of(trial) if line["kind"] == "step" and line["step"] > 1] for trial in trials]
        assert [len(lines) for lines in steps] == [3, 3]
        assert_is_the_median(row, steps)
    assert rows["tree", 2]["loss_difference"] < 1e-5 and rows["tree", 2]["place"]
    assert rows["powersgd:rank=1", 2]["place"] is None and "not ranked" in rows["powersgd:rank=1", 2]["note"]
    assert found["groups"][1]["link"]["bytes_per_s"] > 0 and found["groups"][1]["hosts"]
    for name in ("steps", "scaling", "crossings"):
        assert (folder / f"{name}.svg").read_text().startswith("<?xml") and (
            folder / f"{name}.png"
        ).stat().st_size > 1000


def test_to_the_target_over_seeds(tmp_path: Path) -> None:
    options = [
        "--reductions",
        "native,ring",
        "--nodes",
        "2",
        "--repeats",
        "2",
        "--to-target",
        "--set",
        "target.top1=0.1",
    ]
    options += ["--set", "learning_rate.base=0.01", "--set", "target.max_epochs=3"]
    done = run_command(("compare", "squeezenet-digits", "--on", "local", *options), tmp_path, 240)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "results" / "comparisons" / "squeezenet-digits"
    seeds = {Run(path.parent).config().seed for path in folder.glob("*/trials/*/run.json")}
    assert len(seeds) == 2
    for row in json.loads((folder / "comparison.json").read_text())["rows"]:
        own = [Run(path).summary() for path in folder.glob(f"2x1/trials/*-{row['reduction']}-r?")]
        times = [summary["time_to_accuracy_s"] if summary["reached"] else inf for summary in own]
        reached = sum(time < inf for time in times)
        assert (row["reached"], row["missed"]) == (reached, len(times) - reached)
        assert row["value_s"] == (None if median(times) == inf else pytest.approx(median(times)))
    shutil.copytree(folder / "2x1", folder / "2x1-copy")
    again = json.loads(json.dumps(collect(folder)["rows"]))
    assert again == json.loads((folder / "comparison.json").read_text())["rows"], "a copy is no world"


def test_a_dry_run_shows_the_plan_and_leaves_nothing(tmp_path: Path, firetrain: Command) -> None:
    done = firetrain(
        "compare", *SMALL, "--nodes", "1,4", "--ranks-per-node", "2", "--reductions", "ring,native", "--dry-run"
    )
    assert done.returncode == 0, done.stderr
    assert "1 rank on 1 node: 3 trials" in done.stdout and "8 ranks on 4 nodes, 2 each: 6 trials" in done.stdout
    assert "duration unknown: the results folder has no run of these configs" in done.stdout
    done = firetrain("compare", "squeezenet-digits", "--on", "local", "--to-target", "--dry-run")
    assert "duration unknown: trials end with their target" in done.stdout, done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--reductions", "ring,tre"], "unknown reduction 'tre', did you mean tree?"),
        (["--reductions", "ring,ring"], "ring is listed twice"),
        (
            ["--reductions", "ring,parameter-server:servers=3", "--nodes", "2"],
            "servers must be from 1 to the number of ranks",
        ),
        (["--nodes", "1,zwei"], "numbers separated by commas"),
        (["--nodes", "0"], "firetrain: --nodes: 0 is not from 1 to 1048576\n"),
        (["--repeats", "0"], "repeats: must be greater than or equal to 1"),
        (["--to-target"], "--steps and --to-target"),
        (["--set", "batch.size=3"], "unknown key"),
        (["--set", "reduction.name=ring"], "a comparison sets reduction.name itself: use reductions instead"),
        (["--set", "target.max_epochs=3"], "use steps instead"),
        (["--time", "1:30"], "only with --on slurm"),
    ],
)
def test_a_mistake_is_told_and_nothing_is_left(
    options: list[str], told: str, tmp_path: Path, firetrain: Command
) -> None:
    done = firetrain("compare", *SMALL, *options)
    assert done.returncode == 2 and told in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())


def test_a_list_without_entries_is_told_as_empty(tmp_path: Path, firetrain: Command) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\nconfigs: [quickstart]\nnodes: []\n")
    done = firetrain("compare", "./mine.yaml", "--dry-run")
    assert done.returncode == 2 and done.stderr == "firetrain: mine.yaml:3:1: nodes: must not be empty (got [])\n"


def rows_of(folder: Path, strategies: str, nodes: int, reductions: str = "native") -> dict[str, dict[str, Any]]:
    """The rows of a comparison of strategies on LeNet, by strategy and, if there are several, reduction."""
    done = compare(
        folder, "--set", "model.name=lenet", "--strategies", strategies, "--reductions", reductions, "--nodes", str(nodes),
        "--repeats", "1", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    several = "," in reductions
    return {row["strategy"] + several * f" {row['reduction']}": row for row in json.loads(done.stdout)["rows"]}


def test_strategies_are_compared_beside_reductions_and_tell_what_their_exchanges_take(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "data-parallel,one-weird-trick,pipeline:stages=2,micro_batches=2", nodes=2)
    assert sorted(rows) == ["data-parallel", "one-weird-trick", "pipeline:stages=2,micro_batches=2"]
    whole, trick, pipeline = (rows[name] for name in sorted(rows))
    assert (whole["exchange_s"], whole["bubble_s"]) == (None, None)
    assert 0 < trick["exchange_s"] < trick["value_s"] and trick["bubble_s"] is None
    assert 0 < pipeline["bubble_s"] < pipeline["value_s"] and pipeline["exchange_s"] is None
    assert all(row["loss_difference"] < 1e-3 for row in (trick, pipeline))
    assert {row["place"] for row in rows.values()} <= {1, 2, 3}
    for name, told in (
        ("one-weird-tric", "did you mean one-weird-trick?"),
        ("data-parallel,pipeline:stages=3", "stages x replicas must be the number of ranks"),
    ):
        again = compare(tmp_path, "--set", "model.name=lenet", "--strategies", name, "--nodes", "2", "--into", "x")
        assert again.returncode == 2 and told in again.stderr, again.stderr


def test_each_strategy_is_compared_with_each_reduction(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "data-parallel,one-weird-trick", 2, "native,ring")
    assert sorted(rows) == [
        "data-parallel native",
        "data-parallel ring",
        "one-weird-trick native",
        "one-weird-trick ring",
    ]
    assert {row["place"] for row in rows.values()} <= {1, 2, 3, 4}
    assert all(row["value_s"] > 0 and row["loss_difference"] < 1e-3 for row in list(rows.values())[1:])


def test_parameter_servers_are_compared_and_stale_gradients_are_not_ranked(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "data-parallel,parameter-server:policy=sync,parameter-server:policy=async", nodes=3)
    whole, late, even = (rows[name] for name in sorted(rows))
    assert even["loss_difference"] < 1e-3 < late["loss_difference"]
    assert whole["place"] and even["place"] and late["place"] is None


def test_shipped_comparisons_can_be_planned_for_eight_nodes(tmp_path: Path) -> None:
    need(None if find_spec("horovod") else "a shipped comparison has Horovod in it (make horovod)")
    assert "firecaffe" in shipped_comparisons()
    for name in shipped_comparisons():
        groups = allocations_of(load_comparison(name, {"nodes": [1, 2, 8]}), tmp_path)
        assert len(groups[-1].world.nodes) == 8
        assert estimate_s(groups, tmp_path) is None
        assert groups == allocations_of(load_comparison(name, {"nodes": [1, 2, 8]}), tmp_path), (
            "the order is shuffled, but always alike"
        )
        first, second = (
            [
                str((p.loaded.config.strategy, p.loaded.config.name, p.arm, p.reduction))
                for p in groups[-1].trials
                if p.repeat == n
            ]
            for n in (0, 1)
        )
        assert sorted(first) == sorted(second)
        assert len(first) < 3 or first != second, "the few orders of two can be alike by chance"


def test_set_adds_to_what_the_file_overrides() -> None:
    plain, more = (load_comparison("firecaffe", options) for options in ({}, {"overrides": ["data.threads=1"]}))
    assert more.overrides == (*plain.overrides, "data.threads=1") and plain.overrides
