"""The commands for a cluster that the documentation shows run on one, in their order and as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from firetrain.launch.site import sites

ROOT = Path(__file__).parents[2]
CONFIG = "squeezenet-mini-digits --set cluster.ranks_per_node=4 --set target.max_steps=20"
BLOCKS = [
    (page.name, block)
    for page in sorted((ROOT / "docs").glob("*.md"))
    for block in re.findall(r"^\n((?:    .*\n)+)", page.read_text(), re.MULTILINE)
    if re.match(r"    (export MASTER_ADDR|firetrain site check)", block)
]


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=[f"{page}-{number}" for number, (page, _) in enumerate(BLOCKS)])
def test_the_commands_work(page: str, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    own = tmp_path / "settings" / "firetrain" / "sites" / "NAME.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(sites()["testbed"].read_text() + "preflight: false\n")
    lines = block.strip().split("\n    ")
    words = (re.sub(r"^(srun )?firetrain ", rf"\1{shlex.quote(sys.executable)} -m firetrain ", line) for line in lines)
    script = "set -e\n" + "\n".join(words).strip().replace("CONFIG", CONFIG)
    done = subprocess.run(
        ["salloc", "--nodes=2", "--ntasks=2", "--partition=debug", "bash", "-c", script],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_three_pages_show_such_commands() -> None:
    assert {page for page, _ in BLOCKS} == {"predicting.md", "reductions.md", "slurm.md"}
