"""One file per checkpoint, `checkpoints/step-00000120-1a2b3c4d.pt` in the run's folder: its step, the CRC-32 of its bytes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

from firetrain.errors import FiretrainError
from firetrain.records.file import cannot_write, write_whole


def save(folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Write `state` (tensors, numbers, dicts) as the checkpoint after `step` steps; the newest `keep` stay.

    The file has its name only once all its bytes are on the disk. CannotWrite if that fails; those before it stay.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    path = folder / f"step-{step:08d}-{crc32(content):08x}.pt"
    with cannot_write(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("*.draft"):  # of attempts that were killed
            left.unlink()
    write_whole(path, content, settle=True)
    for old in _all(folder)[:-keep]:
        with cannot_write(old):
            old.unlink()
    return path


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The latest checkpoint that can be read, if there is one, and what is wrong with those that came after it.

    These get the suffix .damaged, so that they do not count among those that are kept.
    """
    wrong = []
    for path in reversed(_all(folder)):
        try:
            load(path)
        except FiretrainError as error:
            wrong.append(str(error))
            path.replace(path.with_suffix(".damaged"))
        else:
            return path, wrong
    return None, wrong


def newest_step(folder: Path) -> int | None:
    """The step after which the latest checkpoint was saved, by its name; None if there is none."""
    found = _all(folder)
    return int(found[-1].name.split("-")[1]) if found else None


def load(path: Path) -> dict[str, Any]:
    """A checkpoint's state on the CPU; only tensors and plain data are read, never code.

    FiretrainError if its bytes are not those that were written.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FiretrainError(f"{path}: cannot be read: {error.strerror}") from error
    found = f"{crc32(content):08x}"
    if found != path.stem.rpartition("-")[2]:
        raise FiretrainError(f"{path}: damaged: its {len(content)} bytes have the checksum {found}, not the name's")
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        raise FiretrainError(f"{path}: not a checkpoint that can be read: {error}") from error
    return state


def _all(folder: Path) -> list[Path]:
    """Oldest first."""
    return sorted(folder.glob("step-*-????????.pt"))
