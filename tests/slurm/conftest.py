"""A real Slurm of four nodes, started once for the session and always taken down."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import need
from testbed import TESTBED, missing

# what a rank does to itself once the run has logged a step, by FAULT=RANK:WHAT
SABOTAGE = """
import os, re, signal, sys, threading, time
def strike(what):
    run = os.path.dirname(os.environ["FIRETRAIN_ATTEMPT"])
    while not os.path.exists(run + "/metrics.jsonl"):
        time.sleep(0.05)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hang":
        re.match("(a+)+$", "a" * 100 + "b")  # takes for ever, and lets no other thread have a turn
    os._exit(int(what))
fault = os.environ.get("FAULT", "")
if fault and "train" in sys.argv and os.environ.get("SLURM_PROCID") == fault.partition(":")[0]:
    threading.Thread(target=strike, args=(fault.partition(":")[2],), daemon=True).start()
"""


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """The path of its slurm.conf, which is also in SLURM_CONF."""
    need(missing())
    subprocess.run([TESTBED, "down"], capture_output=True)  # of a session that was killed
    done = subprocess.run([TESTBED, "up", "--nodes", "4", "--gpus-per-node", "4"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    os.environ["SLURM_CONF"] = done.stdout.strip()
    try:
        yield os.environ.pop("SLURM_CONF")
    finally:
        subprocess.run([TESTBED, "down"], check=True)


@pytest.fixture(autouse=True)
def _environment(cluster: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLURM_CONF", cluster)
    sabotage = tmp_path / "sabotage"
    sabotage.mkdir()
    (sabotage / "sitecustomize.py").write_text(SABOTAGE)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder that a script has to quote."""
    return tmp_path / "re sul$ts"
