"""The doctor finds installed software, says how to install what is missing, and survives libraries that crash on import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Doctor = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    """Run the doctor with another PATH, or with modules that hide the installed ones."""

    def run(*arguments: str, path: str | None = None, **modules: str) -> subprocess.CompletedProcess[str]:
        for name, text in modules.items():
            (tmp_path / "modules" / name).mkdir(parents=True)
            (tmp_path / "modules" / name / "__init__.py").write_text(text)
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "modules")}
        environment |= {"PATH": path} if path is not None else {}
        command = [sys.executable, "-m", "firetrain", "doctor", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)

    return run


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {finding["name"]: finding for finding in json.loads(done.stdout)}


def test_what_is_installed_is_found(doctor: Doctor) -> None:
    done = doctor("--json")
    found = findings(done)
    assert done.returncode == 0, done.stderr
    assert found["torch"]["here"] and found["torch"]["found"][0].isdigit()
    assert found["python"]["found"] == ".".join(map(str, sys.version_info[:3]))
    assert "make horovod" in found["horovod"]["remedy"]
    assert all(finding["here"] or finding["remedy"] for finding in found.values())
    assert list(found) == ["python", "torch", "gpu", "horovod", "slurm", "mpi", "git", "g++", "ip"]


def test_without_tools_every_one_is_told_with_where_to_get_it(doctor: Doctor, tmp_path: Path) -> None:
    found = findings(doctor("--json", path=str(tmp_path)))
    for tool, package in (("mpi", "openmpi-bin"), ("git", "git"), ("g++", "g++"), ("ip", "iproute2")):
        assert not found[tool]["here"] and f"(Debian: {package})" in found[tool]["remedy"]
    assert "sinfo not found" in found["slurm"]["remedy"]


def test_a_torch_that_crashes_is_missing_and_the_exit_code_says_so(doctor: Doctor) -> None:
    crash = "import os\nos.abort()\n"
    done = doctor("--json", torch=crash, horovod=crash)
    found = findings(done)
    assert done.returncode == 78 and "Traceback" not in done.stderr
    assert not found["torch"]["here"] and found["torch"]["needed"] and "pytorch.org" in found["torch"]["remedy"]
    assert not found["gpu"]["here"] and not found["horovod"]["here"]


def test_the_table_shows_remedies_in_place_of_what_is_missing(doctor: Doctor, tmp_path: Path) -> None:
    done = doctor(path=str(tmp_path))
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "training" in lines["torch"] and "mpirun not found" in lines["mpi"]


def test_a_sinfo_without_a_cluster_is_told_apart_from_none(doctor: Doctor, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sinfo").write_text(
        "#!/bin/sh\necho 'sinfo: fatal: Could not establish a configuration source' >&2\nexit 1\n"
    )
    (tools / "sinfo").chmod(0o755)
    found = findings(doctor("--json", path=f"{tools}:/usr/bin:/bin"))
    assert (
        found["slurm"]["remedy"] == "sinfo is installed but fails: is there a slurm.conf?"
        and not found["slurm"]["here"]
    )
