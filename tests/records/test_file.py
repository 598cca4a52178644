"""Files are written completely or not at all, even if others read, write or die at the same time."""

from __future__ import annotations

import errno
import multiprocessing
import os
import threading
from pathlib import Path

import pytest

from firetrain.errors import CannotCreate, CannotWrite
from firetrain.records.file import cannot_write, write_whole

processes = multiprocessing.get_context("fork")


def test_text_and_bytes_are_written_as_they_are(tmp_path: Path) -> None:
    write_whole(tmp_path / "text", "größer\n")
    write_whole(tmp_path / "bytes", b"\x00\xff")
    assert (tmp_path / "text").read_bytes() == "größer\n".encode()
    assert (tmp_path / "bytes").read_bytes() == b"\x00\xff"


def test_a_file_name_that_is_no_text_survives_in_the_content(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    write_whole(tmp_path / "list", name)
    assert (tmp_path / "list").read_bytes() == b"caf\xe9"


@pytest.mark.parametrize("settle", [False, True])
def test_new_content_replaces_the_old_and_leaves_no_draft(tmp_path: Path, settle: bool) -> None:
    for content in ("old, and longer than the new", "new"):
        write_whole(tmp_path / "file", content, settle=settle)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "new"


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "new"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_whole(tmp_path / "pipe", "through the pipe")
    reader.join(10)
    assert read == ["through the pipe"] and not (tmp_path / "pipe").is_file()


def test_a_missing_folder_is_an_error_with_the_file_and_the_reason(tmp_path: Path) -> None:
    with pytest.raises(CannotWrite, match="cannot write .*nowhere/file: No such file or directory"):
        write_whole(tmp_path / "nowhere" / "file", "content")


def test_the_kind_of_error_is_the_caller_s_choice(tmp_path: Path) -> None:
    with pytest.raises(CannotCreate) as told:
        write_whole(tmp_path / "nowhere" / "file", "content", kind=CannotCreate)
    assert told.value.exit_code == 73 and CannotWrite("").exit_code == 74


def test_a_folder_in_the_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(CannotWrite, match="folder: Is a directory"):
        write_whole(tmp_path / "folder", "content")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_failed_write_keeps_the_old_content_and_removes_the_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsync reports a full disk, as on network file systems."""
    (tmp_path / "file").write_text("old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CannotWrite, match="No space left on device"):
        write_whole(tmp_path / "file", "new", settle=True)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_readers_see_one_content_or_the_other(tmp_path: Path) -> None:
    """Four writers replace the same file; every read returns the complete content of one of them."""
    path, size = tmp_path / "file", 1 << 16
    path.write_text("a" * size)
    writers = [processes.Process(target=_write, args=(path, letter * size)) for letter in "abcd"]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        content = path.read_text()
        assert len(content) == size and len(set(content)) == 1
        seen.add(content[0])
    assert all(writer.exitcode == 0 for writer in writers)
    assert len(seen) > 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def _write(path: Path, content: str) -> None:
    for _ in range(100):
        write_whole(path, content)


def test_a_killed_writer_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("a" * (1 << 20))
    writer = processes.Process(target=_write, args=(path, "b" * (1 << 20)))
    writer.start()
    drafts = 0
    while writer.is_alive() and not drafts:
        drafts = len(list(tmp_path.glob("*.draft")))
    writer.kill()  # a writer that has ended already is no error
    writer.join()
    content = path.read_text()
    assert len(content) == 1 << 20 and len(set(content)) == 1


def test_an_error_without_a_word_is_told_by_its_text(tmp_path: Path) -> None:
    with pytest.raises(CannotWrite, match="cannot write report: the pipe is gone"), cannot_write(Path("report")):
        raise OSError("the pipe is gone")


def test_errors_that_are_not_the_system_s_pass(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), cannot_write(tmp_path):
        1 / 0  # noqa: B018
