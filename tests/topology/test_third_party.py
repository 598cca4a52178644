"""Another package's topology is listed, proved, drawn and trained with, like ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = """\
[metadata]
name = firetrain-star
version = 1.0
[options]
py_modules = firetrain_star
[options.entry_points]
firetrain.topologies =
    star = firetrain_star:star
"""

MODULE = '''\
from firetrain.cluster import World
from firetrain.topology import Plan, Transfer


def star(world: World) -> Plan:
    """All send to the last rank, which sends the sum back."""
    last = world.size - 1
    up = [Transfer(rank, last, 0, True) for rank in range(last)]
    down = [Transfer(last, rank, 0, False) for rank in range(last)]
    return Plan("star", world.size, 1, (*up, *down))
'''


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a shell in which the package is installed."""
    source, site = tmp_path_factory.mktemp("star"), tmp_path_factory.mktemp("site")
    (source / "setup.cfg").write_text(SETUP)
    (source / "setup.py").write_text("import setuptools\nsetuptools.setup()\n")
    (source / "firetrain_star.py").write_text(MODULE)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run([*command, str(source)], check=True, capture_output=True)
    return {**os.environ, "PYTHONPATH": str(site)}


def run(environment: dict[str, str], cwd: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "firetrain", *arguments]
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_listed_with_its_package(environment: dict[str, str], tmp_path: Path) -> None:
    line = next(line for line in run(environment, tmp_path, "topology", "list").splitlines() if line.startswith("star"))
    assert line.endswith("All send to the last rank, which sends the sum back. [firetrain-star]")


def test_it_is_proved_and_drawn(environment: dict[str, str], tmp_path: Path) -> None:
    assert "star: right for all" in run(environment, tmp_path, "topology", "check", "star")
    assert "2 rounds" in run(environment, tmp_path, "topology", "show", "star", "--ranks", "4")


def test_it_trains(environment: dict[str, str], tmp_path: Path) -> None:
    limits = ["--set", "target.max_steps=3", "--set", "reduction.checksum_every_steps=1"]
    out = run(environment, tmp_path, "launch", "squeezenet-digits", "--ranks-per-node", "3", "--set", "reduction.name=star", *limits)
    assert "3 ranks" in out and "not reached" in out
