"""Comparisons as Slurm jobs, with one allocation for each number of nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from testbed import slurm

from firetrain.launch.site import sites
from firetrain.records import Run


def test_it_ends_by_itself_and_makes_up_for_a_killed_trial(results: Path, tmp_path: Path) -> None:
    folder = results / "comparisons" / "squeezenet-digits"
    options = (
        "--reductions", "native,ring,tree", "--nodes", "1,2", "--steps", "3", "--warmup-steps", "1", "--repeats", "1",
    )  # fmt: skip
    priced = tmp_path / "priced.yaml"
    priced.write_text(sites()["testbed"].read_text() + "preflight: false\nprice_per_node_hour: 36\n")
    command = [
        sys.executable, "-m", "firetrain", "compare", "squeezenet-digits", "--on", "slurm", "--site", str(priced), *options,
        "--results", str(results), "--set", "batch.global_size=8", "--set", "reduction.bucket_mib=1",
    ]  # fmt: skip
    handed_on = ["--pass-env", "PYTHONPATH", "--pass-env", "FAULT"]
    sabotage = {
        "PYTHONPATH": str(tmp_path / "sabotage"),
        "FAULT": f"1:kill:{str(folder).replace('[', '[[]')}/2x1/trials/*-ring-r0/metrics.jsonl",
    }
    done = subprocess.run(
        [*command, *handed_on], capture_output=True, text=True, timeout=200, env={**os.environ, **sabotage}
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "killed by signal 9 (SIGKILL)" in done.stdout and "rank 1 on fire2" in done.stdout, done.stdout
    states = {path.parent.name: Run(path.parent).facts()["state"] for path in folder.glob("*/trials/*/run.json")}
    assert sorted(states.values()) == ["completed"] * 3 + ["failed"], states
    assert "2 of 4 rows" not in done.stderr and "1 of 4 rows are incomplete" in done.stderr
    again = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.count("submitted") == 1, "only the group that lacks a trial is run again"
    found = json.loads((folder / "comparison.json").read_text())
    assert [group["hosts"] for group in found["groups"]] == [["fire1"], ["fire1", "fire2"]]
    assert {row["reduction"] for row in found["rows"]} == {"one rank", "native", "ring", "tree"}
    assert max(row["loss_difference"] for row in found["rows"]) < 1e-5
    trials = [Run(path.parent).facts() for path in folder.glob("*/trials/*/run.json")]
    assert len(trials) == 4 and all(trial["price_per_node_hour"] == 36 for trial in trials), (
        "as runs on their own have it"
    )
    assert not slurm("squeue", "-h").strip()


def test_what_does_not_fit_the_cluster_is_told_and_nothing_is_left(results: Path) -> None:
    command = [sys.executable, "-m", "firetrain", "compare", "squeezenet-digits", "--on", "slurm", "--site", "testbed"]
    for options, told in (
        (["--nodes", "1,5"], "5 nodes requested, but partition debug has 4"),
        (["--partition", "debugg"], "did you mean debug?"),
        (["--ranks-per-node", "17", "--nodes", "2"], "17 processors per node"),
    ):
        done = subprocess.run(
            [*command, *options, "--results", str(results)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 2 and told in done.stderr, done.stdout + done.stderr
        assert not results.exists() and not slurm("squeue", "-h").strip()
