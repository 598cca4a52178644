"""What `pip install .` puts on a machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_an_installed_firetrain_brings_its_configs_along(tmp_path: Path) -> None:
    source, site = tmp_path / "source", tmp_path / "site"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "results"))
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(site),
    ]
    subprocess.run([*command, str(source)], check=True, capture_output=True)
    script = (
        "from firetrain.config import load_config, shipped_configs\n"
        "from firetrain.config.names import reduction_names\n"
        "print(load_config('quickstart').source, len(shipped_configs()), 'tree' in reduction_names())"
    )
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    path, count, has_tree = done.stdout.split()
    assert Path(path) == site / "firetrain" / "configs" / "quickstart.yaml"
    assert int(count) >= 10 and has_tree == "True"
    assert (site / "firetrain" / "py.typed").exists()


def test_the_project_does_not_know_where_it_was_written() -> None:
    """No path of a developer's machine in any file that is shipped."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    home = str(ROOT.parent) + os.sep
    found = [name for name in tracked if home in (ROOT / name).read_text(errors="ignore")]
    assert not found
