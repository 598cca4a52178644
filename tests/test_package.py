"""Packaging: what `pip install .` installs from the wheel and from the source distribution, each in a separate environment."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from installed import ROOT, build, install, link_libraries, tracked
from needs import need
from recorded import record

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


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the source distribution."""
    return build(tmp_path_factory.mktemp("built"))


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


@pytest.fixture(scope="module")
def installed(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Python in two fresh environments: one with the wheel and what it needs, one with the source distribution."""
    everywhere = os.environ.get("FIRETRAIN_NO_SKIPS")
    need(None if everywhere else "installs torch once more, which takes a minute (FIRETRAIN_NO_SKIPS=1 does it)")
    folders = {kind: tmp_path_factory.mktemp(kind.replace(" ", "-")) for kind in built}
    for kind, folder in folders.items():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        if kind != "wheel":
            link_libraries(Path(sysconfig.get_path("purelib")), folder)
        install(folder, built[kind])
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
