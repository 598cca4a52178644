"""A file is written whole or not at all, and a failure is told with the file and the reason."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from firetrain.config.files import exists, is_file
from firetrain.errors import CannotWrite, FiretrainError


def write_whole(
    path: Path, content: bytes | str, *, settle: bool = False, kind: type[FiretrainError] = CannotWrite
) -> None:
    """Replace the file `path`: a reader sees the old one or the new one, and no draft is left behind.

    `settle`: have its bytes and its name on the disk before returning. An error of `kind` if that fails; the old one stays.
    """
    if exists(path) and not is_file(path):  # a pipe, a terminal: nobody sees half of it
        with cannot_write(path, kind), path.open("wb") as file:
            file.write(_bytes(content))
        return
    place = Path(os.path.realpath(path))  # a link stays one
    draft = Path(f"{place}.{os.getpid()}.draft")  # two may write at once, and the later one wins
    try:
        with cannot_write(path, kind), draft.open("wb") as file:
            file.write(_bytes(content))
            file.flush()
            if settle:
                os.fsync(file.fileno())
        with cannot_write(path, kind):
            draft.replace(place)
            if settle:
                _settle(place.parent)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


@contextmanager
def cannot_write(path: Path, kind: type[FiretrainError] = CannotWrite) -> Iterator[None]:
    """Turn the system's errors into an error of `kind`, saying what was to be written."""
    try:
        yield
    except OSError as error:
        raise kind(f"cannot write {path}: {error.strerror or error}") from error


def _bytes(content: bytes | str) -> bytes:
    """Names of files may hold what is no text."""
    return content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content


def _settle(folder: Path) -> None:
    """Have the folder's entries written to the disk, too."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
