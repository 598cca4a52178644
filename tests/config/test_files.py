"""Files that users name: each reason why one cannot be read becomes a clear error, with line and column where possible."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from firetrain.config.files import (
    exists,
    is_file,
    is_folder,
    read_bytes,
    read_text,
    read_yaml,
    user_path,
    why_unreadable,
)
from firetrain.config.shipped import shipped
from firetrain.errors import UserError

TOO_LONG = Path("x" * 5000)


def test_text_that_cannot_be_a_path_is_no_file() -> None:
    for path in (TOO_LONG, Path("a\x00b")):
        assert not exists(path) and not is_file(path) and not is_folder(path)


def test_a_home_folder_is_found_and_an_unknown_user_s_is_left_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert user_path("~/my.yaml") == Path("/home/ada/my.yaml")
    assert user_path("~no-such-user-here/my.yaml") == Path("~no-such-user-here/my.yaml")


def test_the_reason_why_a_folder_is_unfit_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "image.png").touch()
    assert why_unreadable(tmp_path / "full") == ""
    assert why_unreadable(tmp_path / "empty") == f"{tmp_path / 'empty'} is empty"
    assert why_unreadable(tmp_path / "file") == f"{tmp_path / 'file'} is not a folder"
    assert why_unreadable(tmp_path / "none") == f"there is nothing at {tmp_path / 'none'}"
    assert len(why_unreadable(TOO_LONG)) < 300


def test_a_file_as_large_as_allowed_is_read_and_a_larger_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 4096)
    assert len(read_bytes(tmp_path / "file", 4096, "config")) == 4096
    with pytest.raises(UserError, match="too large for a config .limit 3 KiB"):
        read_bytes(tmp_path / "file", 4095, "config")


@pytest.mark.parametrize(
    ("path", "told"),
    [("folder", "is a folder, not a file"), ("pipe", "is not a regular file"), ("none", "No such file"),
     ("x" * 5000, "File name too long"), ("a\x00b", "invalid path")],
    ids=["folder", "pipe", "none", "long", "zero"],
)  # fmt: skip
def test_what_is_no_file_is_told_and_does_not_block(tmp_path: Path, path: str, told: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=told) as error:
        read_bytes(tmp_path / path, 100, "config")
    assert len(str(error.value)) < 500


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xef\xbb\xbfname: a\n")
    assert read_text(tmp_path / "file") == "name: a\n"


@pytest.mark.parametrize(
    ("content", "place"),
    [(b"name: \xff", ":1:7:"), (b"a: 1\nb: \xc3\x28\n", ":2:4:"), ("é: 1\nü: ".encode() + b"\xe9", ":2:4:")],
)
def test_a_byte_that_is_no_text_is_told_with_line_and_column(tmp_path: Path, content: bytes, place: str) -> None:
    (tmp_path / "file.yaml").write_bytes(content)
    with pytest.raises(UserError, match=re.escape(f"file.yaml{place} not UTF-8 text: byte 0x")):
        read_text(tmp_path / "file.yaml")


def test_a_document_keeps_its_mistakes_for_the_list_of_all(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text("a: 1\na: 2\nb: {c: 3}\n")
    document = read_yaml(tmp_path / "file.yaml")
    assert document.data["b"] == {"c": 3}
    assert [str(mistake) for mistake in document.mistakes] == [
        f"{tmp_path / 'file.yaml'}:2:1: a: written twice, first in line 1; keep one"
    ]


def test_shipped_files_are_found_by_the_package_and_by_the_folder_of_a_checkout() -> None:
    by_package, by_folder = shipped("firetrain.configs", "configs"), shipped("no.such.package", "configs")
    assert by_package.keys() == by_folder.keys() and "quickstart" in by_package
    assert all(path.suffix == ".yaml" and path.is_file() for path in by_package.values())
