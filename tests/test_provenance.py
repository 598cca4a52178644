"""Provenance: the commit and its changes, the packages, and the cores that this process may use."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from needs import need

import firetrain as package
from firetrain.provenance import provenance, usable_cores


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of firetrain's package in a new repository with one commit."""
    need(None if shutil.which("git") else "git is not installed")
    folder = tmp_path / "checkout"
    shutil.copytree(
        Path(package.__file__).parent,
        folder / "firetrain",
        ignore=shutil.ignore_patterns("__pycache__"),
        symlinks=False,
    )
    (folder / ".gitignore").write_text("__pycache__\n")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "All of it")
    return folder


def seen_from(folder: Path) -> dict[str, object]:
    """The provenance that firetrain reports if its package is in this folder."""
    program = "import json; from firetrain.provenance import provenance; print(json.dumps(provenance()))"
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd="/")
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_clean_checkout_is_its_commit(checkout: Path) -> None:
    found = seen_from(checkout)
    assert found["commit"] == git(checkout, "rev-parse", "--short=12", "HEAD") and found["changes"] is None


def test_a_changed_checkout_is_dirty_and_keeps_its_changes(checkout: Path) -> None:
    (checkout / "firetrain" / "__init__.py").open("a").write("# one more line\n")
    found = seen_from(checkout)
    assert found["commit"] == git(checkout, "rev-parse", "--short=12", "HEAD") + "-dirty"
    assert "+# one more line" in str(found["changes"])


def test_a_very_long_change_is_cut_and_says_so(checkout: Path) -> None:
    (checkout / "firetrain" / "limits.py").open("a").write("# a long line\n" * 20_000)
    changes = str(seen_from(checkout)["changes"])
    assert len(changes) < 100_100 and changes.endswith("characters more]")


def test_an_installed_package_inside_another_project_has_no_commit(checkout: Path) -> None:
    """The user's own repository must not be mistaken for firetrain's."""
    inside = checkout / "lib"
    inside.mkdir()
    (checkout / "firetrain").rename(inside / "firetrain")
    found = seen_from(inside)
    assert found["commit"] is None and found["changes"] is None


def test_the_record_names_packages_machine_and_command() -> None:
    found = provenance()
    assert found["firetrain"] == package.__version__
    assert {"torch", "numpy", "pydantic"} <= found["packages"].keys() and found["processor"] and found["host"]
    assert json.loads(json.dumps(found)) == found
    assert "/" not in found["command"][0]


def test_the_cores_are_those_that_this_process_may_use() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    limited = f"import os; os.sched_setaffinity(0, [{allowed[0]}]); "
    program = "from firetrain.provenance import usable_cores; print(usable_cores())"
    done = subprocess.run([sys.executable, "-c", limited + program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "1" and usable_cores() == len(allowed)
