"""Files that users name: found, and read as text, with every way in which that fails told in words."""

from __future__ import annotations

import os
from pathlib import Path

from firetrain.config.document import Document, place_in, read_document
from firetrain.errors import UserError

# a hundred times the longest config that is known
_MOST_BYTES = 64 << 10


def is_file(path: Path) -> bool:
    """Whether there is a regular file; False, too, for what can be no path (Path's own method raises for long names)."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    """Whether there is a folder; False, too, for what can be no path."""
    return os.path.isdir(path)  # noqa: PTH112


def exists(path: Path) -> bool:
    """Whether there is anything; False, too, for what can be no path."""
    return os.path.exists(path)  # noqa: PTH110


def user_path(text: str) -> Path:
    """What a user wrote, with ~ for the home folder; as it stands where there is no such home."""
    return Path(os.path.expanduser(text))  # noqa: PTH111


def why_unreadable(folder: Path) -> str:
    """Why nothing can be read in a folder, naming it; empty if it can."""
    if not exists(folder):
        return f"there is nothing at {_shown(folder)}"
    if not is_folder(folder):
        return f"{folder} is not a folder"
    if not os.access(folder, os.R_OK | os.X_OK):
        return f"{folder} cannot be read by this user"
    return ""


def read_bytes(path: Path, most_bytes: int, what: str) -> bytes:
    """The content of a regular file; UserError if it cannot be read, or is larger than any `what` is."""
    try:
        if is_folder(path):
            raise UserError(f"{path} is a folder: give a file in it")
        if exists(path) and not is_file(path):
            raise UserError(f"{path} is not a regular file: save its content to one")
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise UserError(f"{_shown(path)}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{_shown(path)!r} is no path: {error}") from None
    if len(content) > most_bytes:
        raise UserError(f"{path}: larger than {most_bytes >> 10} KiB, which no {what} is")
    return content


def read_text(path: Path) -> str:
    """A small UTF-8 text, without a byte order mark. UserError, with line and column where there is one."""
    content = read_bytes(path, _MOST_BYTES, "config")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig", "replace")
        place = place_in(before, len(before), str(path))
        raise UserError(f"{place}: not UTF-8 text: byte 0x{content[error.start]:02x} ({error.reason})") from None


def read_yaml(path: Path) -> Document:
    """A file as a document, whose mistakes are listed in it; UserError if it is no text."""
    return read_document(read_text(path), str(path))


def _shown(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 200 else f"{text[:200]}..."
