"""Environments in which firetrain is installed as a user has it: from a wheel or a source distribution, not editable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[1]


def tracked() -> list[str]:
    """The files in a clone of the repository."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split("\0") if name and (ROOT / name).exists()]


def build(folder: Path) -> dict[str, Path]:
    """The wheel and the source distribution, built in `folder` from the files of a clone."""
    source, made = folder / "source", folder / "dist"
    made.mkdir()
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    program = (
        "import sys; from setuptools import build_meta as b; to = sys.argv[1]; b.build_wheel(to); b.build_sdist(to)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(made)], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,), (sdist,) = made.glob("*.whl"), made.glob("*.tar.gz")
    return {"wheel": wheel, "source distribution": sdist}


def link_libraries(libraries: Path, environment: Path) -> None:
    """Link the libraries of one environment into another, because torch alone has a gigabyte; firetrain itself is not."""
    linked = next(environment.glob("lib/python*/site-packages"))
    left_out = shutil.ignore_patterns("firetrain*", "*firetrain*", "pip*")
    shutil.copytree(libraries, linked, copy_function=_link, ignore=left_out, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    """Link a file, unless the environment has its own, as some have of setuptools."""
    if Path(target).exists():
        return
    try:
        os.link(source, target)
    except OSError:  # on another file system
        shutil.copy(source, target)


def install(environment: Path, what: Path) -> Path:
    """Install a distribution and what it needs into an environment; returns its Python."""
    python, constraints = environment / "bin" / "python", ROOT / "constraints.txt"
    command = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--constraint", constraints, what]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return python


def stranger(folder: Path) -> Path:
    """Python in a new environment with the wheel, beside the libraries of the one that runs the tests."""
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    link_libraries(Path(sysconfig.get_path("purelib")), environment)
    return install(environment, build(folder)["wheel"])
