"""A launcher holds the lock of a run with its ranks, and the system releases it when all have exited."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from launched import wait_for
from recorded import record

from firetrain.errors import CannotWrite, UserError
from firetrain.records.lock import held, is_held


def test_a_run_is_held_as_long_as_its_launcher_says(tmp_path: Path) -> None:
    run = record(tmp_path)
    assert not is_held(run)
    with held(run):
        assert is_held(run)
    assert not is_held(run)


def test_a_second_launcher_is_told_how_to_end_the_first(tmp_path: Path) -> None:
    run = record(tmp_path, directory="held")
    with (
        held(run),
        pytest.raises(UserError, match=f"held is running already: .*firetrain cancel {run.path}, or"),
        held(run),
    ):
        pass
    with held(run):  # the refused attempt has neither released nor broken the lock
        assert is_held(run)


def test_a_file_system_without_locks_is_told_and_the_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Lustre when it is mounted without flock; such a mount cannot be made here."""

    def none(*arguments: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    run = record(tmp_path)
    monkeypatch.setattr(fcntl, "flock", none)
    with held(run):
        assert not is_held(run)
    assert "this file system has no locks (Function not implemented)" in capsys.readouterr().err


def test_ranks_hold_the_run_after_their_launcher_has_ended(tmp_path: Path) -> None:
    run = record(tmp_path)
    with held(run) as number:
        rank = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[number])
    assert is_held(run)
    rank.communicate(b"\n", timeout=30)
    assert not is_held(run)


def test_a_killed_rank_frees_the_run(tmp_path: Path) -> None:
    run = record(tmp_path)
    with held(run) as number:
        rank = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[number])
    rank.kill()
    rank.communicate(timeout=30)
    wait_for(lambda: not is_held(run), "the lock of a killed rank is free", limit_s=10)


def test_a_process_that_was_not_given_the_lock_does_not_hold_it(tmp_path: Path) -> None:
    run = record(tmp_path)
    with held(run):
        other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not is_held(run)
    other.communicate(b"\n", timeout=30)


def test_a_folder_that_is_gone_cannot_be_held(tmp_path: Path) -> None:
    run = record(tmp_path)
    run.path.rename(tmp_path / "elsewhere")
    assert not is_held(run)
    with pytest.raises(CannotWrite, match="lock: No such file or directory"), held(run):
        pass
