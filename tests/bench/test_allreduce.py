"""bench allreduce and bench link, without a launcher and as ranks: verified rows, and files that other programs read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from command import Command
from ranks import on_ranks

from firetrain.bench.allreduce import bench_allreduce, wire_bytes
from firetrain.cluster import World
from firetrain.errors import FiretrainError
from firetrain.records.profile import Profile
from firetrain.reduction import catalogue
from firetrain.reduction.context import Context
from firetrain.reduction.interface import Alone, Bucket, Pending, Reduction
from firetrain.topology import find_topology
from firetrain.transport.transport import Transport

COLUMNS = {
    "reduction", "bytes", "dtype", "median_s", "p10_s", "p90_s", "algbw_gb_per_s", "busbw_gb_per_s", "wrong", "nodes", "ranks",
}  # fmt: skip


def test_by_hand_with_all_its_files_and_auto_from_the_profile(firetrain: Command, tmp_path: Path) -> None:
    sizes = ["--ranks", "4", "--nodes", "2", "--sizes", "4KiB,256KiB", "--repeats", "3"]
    files = ["--plot", "plot.svg", "--save", "profile.json"]
    names = "native,ring,hierarchical:inner=direct,outer=double-tree,top-k"
    shown = firetrain("bench", "allreduce", *sizes, "--reductions", "native,ring")
    assert shown.returncode == 0, shown.stderr
    assert "4 ranks on 2 nodes, 2 each over gloo" in shown.stdout and "algbw" in shown.stdout
    done = firetrain("bench", "allreduce", *sizes, *files, "--reductions", names, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) == 8 and all(set(row) >= COLUMNS for row in rows)
    for row in rows:
        assert row["p10_s"] <= row["median_s"] <= row["p90_s"] and row["wrong"] == (
            None if row["reduction"] == "top-k" else 0
        )
        assert row["algbw_gb_per_s"] == pytest.approx(row["bytes"] / row["median_s"] / 1e9)
        assert row["busbw_gb_per_s"] == pytest.approx(row["algbw_gb_per_s"] * 2 * 3 / 4)
    ElementTree.parse(tmp_path / "plot.svg")
    table = Profile.load(tmp_path / "profile.json").table("gloo", (0, 0, 1, 1), "float32")
    assert table and {row.reduction for row in table.rows} == {
        "native",
        "ring",
        "hierarchical:inner=direct,outer=double-tree",
    }
    again = firetrain("bench", "allreduce", *sizes, "--reductions", "auto", "--profile", "profile.json")
    best = {size: table.fastest(size) for size in (4096, 262144)}
    assert again.returncode == 0 and all(f"auto ({name})" in again.stdout for name in best.values()), again.stdout


def test_under_torchrun(tmp_path: Path) -> None:
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "firetrain", "bench", "allreduce"]
    command += ["--reductions", "tree", "--sizes", "4KiB", "--repeats", "3", "--json"]
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert [row["ranks"] for row in json.loads(done.stdout)] == [2]


def test_links_inside_and_between_nodes(firetrain: Command, tmp_path: Path) -> None:
    done = firetrain("bench", "link", "--ranks", "4", "--nodes", "2", "--repeats", "3", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [(link["level"], link["pairs"]) for link in result["links"]] == [
        ("inside a node", "one"), ("inside a node", "all"), ("between nodes", "one"), ("between nodes", "all"),
    ]  # fmt: skip
    assert len(Profile.load(tmp_path / "profile.json").links) == 4


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--reductions", "rings"], "unknown reduction 'rings', did you mean ring?"),
        (["--reductions", "torus:columns=3", "--ranks", "4"], "columns must divide the number of ranks"),
        (["--sizes", "4 apples"], "cannot read the size '4 apples'"),
        (
            ["--sizes", "64GiB", "--ranks", "1024"],
            "1024 ranks on this machine would use at least 352,",
        ),
        (["--timeout", "1e-9"], "1e-09 is not in the range 1.0<=x"),
        (["--reductions", "native,powersgd:rank=0"], "powersgd: rank must be from 1 to 4096 (rank: 0)"),
        (["--profile", "none.json"], "cannot read the profile: none.json"),
        (["--nodes", "3", "--ranks", "2"], "every node needs a rank (ranks: 2, nodes: 3)"),
    ],
)
def test_mistakes_are_told_before_anything_starts(firetrain: Command, arguments: list[str], told: str) -> None:
    done = firetrain("bench", "allreduce", *arguments)
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr


class Forgetful(Reduction):
    """A faulty reduction that skips one element."""

    def __init__(self, context: Context) -> None:
        self._inner = catalogue.find_reduction("ring", context)

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        keep = bucket.buffer[17].clone()
        self._inner.start(bucket, step).wait()
        bucket.buffer[17] = keep
        return Alone()


def verdict(transport: Transport) -> str:
    from firetrain.bench import allreduce

    allreduce.find_reduction = lambda name, context: Forgetful(context)  # type: ignore[attr-defined]
    try:
        list(bench_allreduce(Context(transport), ["ring"], [4096], 3))
    except FiretrainError as error:
        return str(error)
    return "no error"


def test_a_wrong_sum_is_never_timed() -> None:
    for text in on_ranks(2, verdict):
        assert "ring: wrong result" in text and "3 elements are wrong or differ" in text and "not timed" in text


def test_bytes_on_the_wire_are_told_inside_and_between_nodes() -> None:
    world = World.even(2, 2)
    assert wire_bytes(find_topology("hierarchical")(world), world.node_of, 1000, 4) == (4 * 4000, 2 * 4000)
    assert wire_bytes(find_topology("tree")(world), world.node_of, 1000, 2) == (4 * 2000, 2 * 2000)
    assert torch.float32.itemsize == 4
