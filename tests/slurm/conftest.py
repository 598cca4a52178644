"""A real Slurm cluster of four nodes, started once per session and always taken down."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import need
from sabotage import write_sabotage
from testbed import LINK, QUICK, TESTBED, missing, no_jobs, slurm, until

from firetrain.launch.site import sites


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """The path of its slurm.conf, which is also in SLURM_CONF."""
    need(missing())
    subprocess.run([TESTBED, "down"], capture_output=True)  # left by a session that was killed
    wanted = ["--nodes", "4", "--gpus-per-node", "4", "--link", LINK]
    done = subprocess.run([TESTBED, "up", *wanted], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    os.environ["SLURM_CONF"] = done.stdout.strip()
    try:
        yield os.environ.pop("SLURM_CONF")
    finally:
        subprocess.run([TESTBED, "down"], check=True)


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the site `testbed` without preflight."""
    path = tmp_path_factory.mktemp("site") / "quick.yaml"
    path.write_text(f"{sites()['testbed'].read_text()}preflight: false\n")
    return path


@pytest.fixture(autouse=True)
def _environment(cluster: str, quick: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("SLURM_CONF", cluster)
    monkeypatch.setenv(QUICK, str(quick))
    write_sabotage(tmp_path / "sabotage")
    yield
    monkeypatch.undo()  # a test may have taken Slurm away
    monkeypatch.setenv("SLURM_CONF", cluster)
    if not no_jobs():  # jobs of a test that failed would keep the nodes from all later tests
        slurm("scancel", "--user=root")
        until(no_jobs)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A results folder whose name a script must quote."""
    return tmp_path / "re sul$ts"
