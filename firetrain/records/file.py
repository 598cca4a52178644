"""Writes files completely or not at all; errors name the file and the reason."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from firetrain.config.files import exists, is_file, is_folder
from firetrain.errors import CannotCreate, CannotWrite, FiretrainError


def write_whole(
    path: Path, content: bytes | str, *, settle: bool = False, kind: type[FiretrainError] = CannotWrite
) -> None:
    """Replace the file `path`. Readers see the old content or the new one, and no draft is left behind.

    `settle`: return only when content and name are on disk. Raises an error of `kind` if writing fails; the file then keeps
    its old content.
    """
    if exists(path) and not is_file(path):  # write directly: a pipe or a terminal cannot be replaced
        with cannot_write(path, kind), path.open("wb") as file:
            file.write(_bytes(content))
        return
    target = Path(os.path.realpath(path))  # replace the link's target, not the link
    draft = Path(f"{target}.{os.getpid()}.draft")  # two processes may write at the same time; the later one wins
    try:
        with cannot_write(path, kind), draft.open("wb") as file:
            file.write(_bytes(content))
            file.flush()
            if settle:
                os.fsync(file.fileno())
        with cannot_write(path, kind):
            draft.replace(target)
            if settle:
                _settle(target.parent)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


@contextmanager
def cannot_write(path: Path, kind: type[FiretrainError] = CannotWrite) -> Iterator[None]:
    """Context manager: turn an OSError into an error of `kind` that names `path` and the reason."""
    try:
        yield
    except OSError as error:
        raise kind(f"cannot write {path}: {error.strerror or error}") from error


def refuse_impossible(folder: Path) -> None:
    """CannotCreate if there can be no folder at this path: a name in it is too long, or there is something else."""
    with cannot_write(folder, CannotCreate), suppress(FileNotFoundError):
        folder.stat()
        if not is_folder(folder):
            raise CannotCreate(f"{folder} is not a folder")


def refuse_unwritable(path: Path) -> None:
    """CannotCreate if no file can be written at this path, so that nothing is computed in vain."""
    if is_folder(path):
        raise CannotCreate(f"cannot write {path}: it is a folder")
    if exists(path):
        return
    with cannot_write(path, CannotCreate), suppress(FileNotFoundError):
        path.stat()
    refuse_impossible(folder := path.absolute().parent)
    if not is_folder(folder):
        raise CannotCreate(f"cannot write {path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CannotCreate(f"cannot write {path}: {folder} is not writable")


def _bytes(content: bytes | str) -> bytes:
    """The text as UTF-8; file names in it may contain bytes that are not valid UTF-8."""
    return content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content


def _settle(folder: Path) -> None:
    """Write the folder's entries to disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
