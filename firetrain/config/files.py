"""Find and read files named by users; every failure becomes a UserError."""

from __future__ import annotations

import os
from pathlib import Path

from firetrain.config.document import Document, position_in, read_document
from firetrain.errors import UserError

# a hundred times the size of the longest known config
_MOST_BYTES = 64 << 10


def is_file(path: Path) -> bool:
    """Whether `path` is a regular file; also False if it is not a valid path (Path's own method raises for long names)."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    """Whether `path` is a folder; also False if it is not a valid path."""
    return os.path.isdir(path)  # noqa: PTH112


def exists(path: Path) -> bool:
    """Whether `path` is a file or folder; also False if it is not a valid path."""
    return os.path.exists(path)  # noqa: PTH110


def user_path(text: str) -> Path:
    """The path in `text`, with ~ expanded if that home folder exists."""
    return Path(os.path.expanduser(text))  # noqa: PTH111


def why_unreadable(folder: Path) -> str:
    """The reason why no entry of a folder can be read, with the folder's name; empty if there are readable entries."""
    if not exists(folder):
        return f"there is nothing at {_shown(folder)}"
    if not is_folder(folder):
        return f"{folder} is not a folder"
    if not os.access(folder, os.R_OK | os.X_OK):
        return f"{folder} cannot be read by this user"
    with os.scandir(folder) as entries:
        return "" if next(entries, None) else f"{folder} is empty"


def read_bytes(path: Path, most_bytes: int, what: str) -> bytes:
    """The content of a regular file; UserError if it cannot be read or exceeds `most_bytes`. `what`: kind of file, for errors."""
    content = read_beginning(path, most_bytes + 1)
    if len(content) > most_bytes:
        raise UserError(f"{path}: too large for a {what} (limit {most_bytes >> 10} KiB)")
    return content


def read_beginning(path: Path, most_bytes: int) -> bytes:
    """The first bytes of a regular file, at most `most_bytes`; UserError if it cannot be read."""
    refuse_irregular(path)
    try:
        with path.open("rb") as file:
            return file.read(min(most_bytes, os.fstat(file.fileno()).st_size + 1))
    except OSError as error:
        raise UserError(f"{_shown(path)}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"invalid path {_shown(path)!r}: {error}") from None


def read_regular(path: Path) -> bytes:
    """The content of a regular file of any size; UserError if it is none, or cannot be read."""
    refuse_irregular(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{_shown(path)}: cannot be read: {error.strerror}") from None


def refuse_irregular(path: Path) -> None:
    """UserError if there is something at `path` that is no regular file; opening a FIFO would wait for a writer."""
    if is_folder(path):
        raise UserError(f"{path} is a folder, not a file")
    if exists(path) and not is_file(path):
        raise UserError(f"{path} is not a regular file but a FIFO, a socket or a device")


def read_text(path: Path) -> str:
    """The text of a small UTF-8 file, without a byte order mark.

    UserError if it cannot be read, is too large or is not UTF-8; the latter with line and column.
    """
    content = read_bytes(path, _MOST_BYTES, "config")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig", "replace")
        position = position_in(before, len(before), str(path))
        raise UserError(f"{position}: not UTF-8 text: byte 0x{content[error.start]:02x} ({error.reason})") from None


def read_yaml(path: Path) -> Document:
    """The document in a YAML file, which lists its own mistakes; UserError if the file is not readable text."""
    return read_document(read_text(path), str(path))


def _shown(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 200 else f"{text[:200]}..."
