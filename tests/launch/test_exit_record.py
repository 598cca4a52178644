"""The wrapper of a rank in a job script records how the rank ended, whatever signals arrive meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from firetrain.launch.verdict import Ending, endings

SCRIPT = Path(__file__).parents[2] / "slurm" / "examples" / "srun.sh"
LIMIT_S = 60


class Wrapper:
    """A rank that exits with 7; its wrapper is held where it asks for the time of the exit."""

    def __init__(self, folder: Path) -> None:
        """Put a `date` that waits for a word before the real one on the PATH, and start the wrapper."""
        for name in ("logs", "ranks", "bin"):
            (folder / name).mkdir()
        asked, word = folder / "asked", folder / "word"
        for pipe in (asked, word):
            os.mkfifo(pipe)
        date = folder / "bin" / "date"
        date.write_text(
            f'#!/bin/bash\necho $$ >"{asked}"\nread -r <"{word}"\nPATH={os.environ["PATH"]} exec date "$@"\n'
        )
        date.chmod(0o755)
        self._word = os.open(word, os.O_RDWR)  # a reader is not waited for
        env = os.environ | {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "FIRETRAIN_ATTEMPT": str(folder),
            "SLURM_PROCID": "1",
            "SLURMD_NODENAME": "node1",
        }
        self._process = subprocess.Popen(
            ["bash", SCRIPT, "rank", "bash", "-c", "exit 7"], env=env, start_new_session=True
        )
        self._date = int(asked.read_text())

    def terminate(self) -> None:
        """Send SIGTERM to the wrapper and all it started, as Slurm does to a step."""
        os.killpg(self._process.pid, signal.SIGTERM)

    def kill_date(self) -> None:
        os.kill(self._date, signal.SIGKILL)

    def end(self) -> int:
        os.write(self._word, b"go\n")
        return self._process.wait(LIMIT_S)

    def close(self) -> None:
        os.close(self._word)
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(LIMIT_S)


@pytest.fixture
def wrapper(tmp_path: Path) -> Iterator[Wrapper]:
    held = Wrapper(tmp_path)
    yield held
    held.close()


def test_a_rank_that_is_terminated_while_its_exit_is_recorded_is_recorded_whole(
    wrapper: Wrapper, tmp_path: Path
) -> None:
    wrapper.terminate()
    assert wrapper.end() == 7
    (ending,) = endings(tmp_path)
    assert ending == Ending(ending.at_s, 1, "node1", 7) and ending.at_s > 0


def test_a_rank_that_dies_by_the_signal_that_its_wrapper_handles_is_recorded_with_it(tmp_path: Path) -> None:
    """`wait` of bash 5.2 did not know its exit code once in twenty times."""
    for name in ("logs", "ranks"):
        (tmp_path / name).mkdir()
    env = os.environ | {"FIRETRAIN_ATTEMPT": str(tmp_path), "SLURMD_NODENAME": "node1"}
    started = tmp_path / "started"
    os.mkfifo(started)
    for rank in range(100):
        begin = ["bash", SCRIPT, "rank", "bash", "-c", 'echo >"$0"; exec sleep 100', started]
        process = subprocess.Popen(begin, env=env | {"SLURM_PROCID": str(rank)}, start_new_session=True)
        started.read_text()
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(LIMIT_S) == 143
    assert [ending.code for ending in endings(tmp_path)] == [143] * 100


def test_a_rank_whose_exit_has_no_time_has_no_record(wrapper: Wrapper, tmp_path: Path) -> None:
    wrapper.kill_date()
    assert wrapper.end() == 7
    assert endings(tmp_path) == []
