"""One file per checkpoint, `checkpoints/step-00000120-1a2b3c4d.pt` in the run's folder: its step, the CRC-32 of its bytes."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

from firetrain.errors import CannotCreate, FiretrainError


def save(folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Write `state` (tensors, numbers, dicts) as the checkpoint after `step` steps; the newest `keep` stay.

    The file has its name only once all its bytes are on the disk. CannotCreate if it cannot be written.
    """
    buffer = io.BytesIO()
    try:
        torch.save(state, buffer)
        path = folder / f"step-{step:08d}-{crc32(buffer.getbuffer()):08x}.pt"
        folder.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        with draft.open("wb") as file:
            file.write(buffer.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        _settle(folder)
        for old in (*_all(folder)[:-keep], *folder.glob("*.draft")):  # drafts: of attempts that were killed
            old.unlink()
    except (OSError, RuntimeError) as error:
        raise CannotCreate(f"{folder}: cannot write the checkpoint after step {step}: {error}") from error
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


def _settle(folder: Path) -> None:
    """Have the folder's entries written to the disk, too."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
