"""Packaging: what `pip install .` installs from the wheel and from the source distribution, each in a separate environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from needs import need
from recorded import record

ROOT = Path(__file__).parents[1]
# each command needs shipped files: configs, sites, comparisons, profiles, the job's template
COMMANDS = {
    "config list": "googlenet-firecaffe",
    "config show quickstart": "squeezenet1_1",
    "site list": "perlmutter",
    "site show generic": "gpus-per-node",
    "launch quickstart --on slurm --site generic --nodes 2 --dry-run": "#SBATCH --gpus-per-node=",
    "launch quickstart --on slurm --site jean-zay --dry-run": "#!/bin/bash",
    "compare firecaffe --nodes 1 --dry-run": "squeezenet-digits",
    "predict googlenet-firecaffe --profile titan-k20 --ranks 1,32 --reductions tree": "Titan (Cray XK7",
    "predict quickstart --ranks 1,2 --reductions ring": "UNCALIBRATED",
    "topology list": "halving-doubling",
    "model show lenet --image-size 28": "total",
    "report results --html report.html": "time-to-accuracy",
}


def tracked() -> list[str]:
    """The files in a clone of the repository."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split("\0") if name and (ROOT / name).exists()]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the source distribution, built from the files of a clone."""
    source, made = tmp_path_factory.mktemp("source") / "firetrain", tmp_path_factory.mktemp("dist")
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    build = "import sys; from setuptools import build_meta as b; to = sys.argv[1]; b.build_wheel(to); b.build_sdist(to)"
    done = subprocess.run([sys.executable, "-c", build, str(made)], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,), (sdist,) = made.glob("*.whl"), made.glob("*.tar.gz")
    return {"wheel": wheel, "source distribution": sdist}


def test_whatever_is_shipped_is_in_both(built: dict[str, Path]) -> None:
    wheel = set(zipfile.ZipFile(built["wheel"]).namelist())
    with tarfile.open(built["source distribution"]) as tar:
        sdist = {name.partition("/")[2] for name in tar.getnames()}
    for folder, package, suffixes in (
        ("configs", "firetrain/configs", (".yaml",)),
        ("configs/compare", "firetrain/configs/compare", (".yaml",)),
        ("configs/compress", "firetrain/configs/compress", (".yaml",)),
        ("configs/profiles", "firetrain/configs/profiles", (".json",)),
        ("slurm/sites", "firetrain/sites", (".yaml",)),
        ("firetrain/launch", "firetrain/launch", (".j2", ".py")),
        ("firetrain/report", "firetrain/report", (".j2", ".css", ".js", ".py")),
        ("firetrain/topology", "firetrain/topology", (".j2", ".py")),
        ("firetrain/strategy", "firetrain/strategy", (".j2", ".py")),
        ("firetrain/search", "firetrain/search", (".j2", ".py")),
    ):
        files = [path.name for path in (ROOT / folder).iterdir() if path.suffix in suffixes]
        assert files and {f"{package}/{name}" for name in files} <= wheel
        assert {f"{folder}/{name}" for name in files} <= sdist
    packages = {path.parent for path in (ROOT / "firetrain").rglob("*.py")}
    missing = [path for path in packages if f"{path.relative_to(ROOT)}/__init__.py" not in wheel]
    assert not missing and "firetrain/py.typed" in wheel and "LICENSE" in sdist


def link(source: str, target: str) -> None:
    """Link a file, unless the environment has its own, as some have of setuptools."""
    if not Path(target).exists():
        os.link(source, target)


@pytest.fixture(scope="module")
def installed(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Python in two fresh environments, one with the wheel and one with the source distribution."""
    everywhere = os.environ.get("FIRETRAIN_NO_SKIPS")
    need(None if everywhere else "installs torch once more, which takes a minute (FIRETRAIN_NO_SKIPS=1 does it)")
    folders = {kind: tmp_path_factory.mktemp(kind.replace(" ", "-")) for kind in built}
    for kind, folder in folders.items():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        if kind != "wheel":  # the libraries are linked, because torch alone has a gigabyte; firetrain itself is not
            libraries, linked = (next(one.glob("lib/python*/site-packages")) for one in (folders["wheel"], folder))
            left_out = shutil.ignore_patterns("firetrain*", "pip*", "__pycache__")
            shutil.copytree(libraries, linked, copy_function=link, ignore=left_out, dirs_exist_ok=True)
        python, constraints = folder / "bin" / "python", ROOT / "constraints.txt"
        install = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--constraint", constraints, built[kind]]
        done = subprocess.run(install, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return {kind: folder / "bin" / "python" for kind, folder in folders.items()}


@pytest.mark.parametrize("kind", ["wheel", "source distribution"])
def test_an_installed_firetrain_has_all_that_it_ships(kind: str, installed: dict[str, Path], tmp_path: Path) -> None:
    python, empty = installed[kind], tmp_path / "empty"
    record(empty / "results")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    for command, told in {**COMMANDS, "launch squeezenet-digits --set target.max_steps=2": "images/s"}.items():
        words = [str(python.with_name("firetrain")), *command.split()]
        done = subprocess.run(words, cwd=empty, capture_output=True, text=True, env=environment, timeout=120)
        assert done.returncode == 0 and told in done.stdout, f"{command}: {done.stdout}\n{done.stderr}"
    assert "time-to-accuracy" in (empty / "report.html").read_text()
    where = "import firetrain; print(firetrain.__file__)"
    place = subprocess.run([python, "-c", where], cwd=empty, capture_output=True, text=True, env=environment).stdout
    assert Path(place.strip()).is_relative_to(python.parents[1])


def test_the_project_does_not_know_where_it_was_written() -> None:
    """No shipped file contains a path of a developer's machine."""
    home = str(ROOT) + os.sep
    assert not [name for name in tracked() if home in (ROOT / name).read_text(errors="ignore")]
