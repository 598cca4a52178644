"""Fixtures for all tests: real images if they are present, and the command as a user runs it."""

from __future__ import annotations

import gc
import os
import subprocess
import tarfile
from collections import Counter
from collections.abc import Callable, Generator
from multiprocessing import forkserver
from pathlib import Path

import pytest
from command import Command, run_command
from needs import need

# archives of real images, in a folder next to the checkout or in the one that the variable names
ARCHIVES = Path(os.environ.get("FIRETRAIN_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))

# tests share the cores; torch reads it when it is loaded, also in the process that others are forked from
os.environ.setdefault("OMP_NUM_THREADS", "1")

# variables by which launchers tell ranks where they are, and scripts what to use
_OF_RANKS = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
_OF_LAUNCHERS = ("SLURM_", "OMPI_", "PMIX_", "FIRETRAIN_")
_OF_TESTS = ("FIRETRAIN_TEST_", "FIRETRAIN_NO_", "FIRETRAIN_WRITE_", "FIRETRAIN_FUZZ_")

# seconds of processor time of the tests of each file, with the processes that they waited for
_processor_s: Counter[str] = Counter()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Add up processor time, because the seconds of tests that share processors say little."""
    before_s = _until_now_s()
    result = yield
    _processor_s[item.location[0]] += _until_now_s() - before_s
    return result


def _until_now_s() -> float:
    """Of this process, of the one that commands are forked from, and of those that either has waited for."""
    stat = Path(f"/proc/{forkserver._forkserver._forkserver_pid}/stat")
    fields = stat.read_text().rpartition(")")[2].split() if stat.exists() else []
    return sum(os.times()[:4]) + sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the files with the most processor time."""
    terminalreporter.section(f"{sum(_processor_s.values()):.0f} s of processor time, most of them in")
    for file, seconds in _processor_s.most_common(12):
        terminalreporter.write_line(f"{seconds:.0f}s {file}")


def pytest_collection_finish() -> None:
    """Before the first test changes folder or environment, start the process that others are forked from.

    Modules stay out of collections, which took a third of the time of tests that make many objects.
    """
    forkserver.ensure_running()
    gc.freeze()


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Unpack an archive of real images once per session; the test is skipped if there is none."""
    folder = tmp_path_factory.mktemp("archives")

    def unpack(name: str) -> Path:
        if not (ARCHIVES / f"{name}.tar.gz").exists():
            if os.environ.get("FIRETRAIN_NO_IMAGES"):
                pytest.skip(f"no folder of images at {ARCHIVES}")
            need(f"no {name}.tar.gz in {ARCHIVES}: set FIRETRAIN_TEST_DATA to the folder that has it")
        if not (folder / name).exists():
            with tarfile.open(ARCHIVES / f"{name}.tar.gz") as tar:
                tar.extractall(folder, filter="data")
        return next(path for path in folder.glob(f"{name}*") if path.is_dir())

    return unpack


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Run each test in an empty folder, without the user's runs and settings, also inside of an allocation."""
    for name in list(os.environ):
        of_launcher = name.startswith(_OF_LAUNCHERS) and not name.startswith(_OF_TESTS) and name != "SLURM_CONF"
        if name in _OF_RANKS or of_launcher:
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no-configuration"))


@pytest.fixture
def firetrain(tmp_path: Path) -> Command:
    """Run `firetrain ARGUMENTS` in an empty folder."""

    def run(*arguments: str, cwd: Path = tmp_path, limit_s: float = 240) -> subprocess.CompletedProcess[str]:
        return run_command(arguments, cwd, limit_s)

    return run
