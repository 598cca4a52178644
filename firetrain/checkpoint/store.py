"""Checkpoints as files, `checkpoints/step-00000120-1a2b3c4d.pt`, each named after its step and the CRC-32 of its bytes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

from firetrain.config.files import read_regular
from firetrain.errors import FiretrainError, UserError
from firetrain.records.file import cannot_write, write_whole


def save(folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Write `state` (tensors, numbers, dicts) as the checkpoint after `step` steps; delete all but the newest `keep`.

    The file gets its name when all its bytes are on disk. CannotWrite if that fails; earlier checkpoints are then kept.

    >>> path = save(Path("checkpoints"), 120, {"weights": torch.ones(2), "step": 120}, keep=2)
    >>> load(path)["weights"]
    tensor([1., 1.])
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    path = folder / f"step-{step:08d}-{crc32(content):08x}.pt"
    with cannot_write(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("*.draft"):  # drafts of attempts that were killed
            left.unlink()
    write_whole(path, content, settle=True)
    for old in _all(folder)[:-keep]:
        with cannot_write(old):
            old.unlink()
    return path


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The latest readable checkpoint, if there is one, and one message for each later checkpoint that is damaged.

    Damaged ones are renamed with the suffix .damaged and no longer count for `keep`.

    >>> newest(Path("nowhere"))
    (None, [])
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
    """The step after which the latest checkpoint was saved; None if there is none.

    >>> path = save(Path("checkpoints"), 7, {"step": 7}, keep=2)
    >>> newest_step(Path("checkpoints"))
    7
    """
    found = _all(folder)
    return int(found[-1].name.split("-")[1]) if found else None


def newest_model(run: Path) -> dict[str, torch.Tensor]:
    """The weights and statistics in the newest readable checkpoint of the run in this directory; UserError if it has none.

    >>> path = save(Path("run/checkpoints"), 120, {"model": {"weight": torch.ones(2)}}, keep=2)
    >>> newest_model(Path("run"))
    {'weight': tensor([1., 1.])}
    """
    path, wrong = newest(run / "checkpoints")
    if path is None:
        raise UserError(
            "; ".join([f"{run} has no readable checkpoint", *wrong])
            + ": train one that saves them (checkpoint.every_epochs=1)"
        )
    model: dict[str, torch.Tensor] = load(path)["model"]
    return model


def load(path: Path) -> dict[str, Any]:
    """Load a checkpoint's state to the CPU. Only tensors and plain data are read, never code.

    FiretrainError if the file cannot be read, or if its bytes differ from those that were written.

    >>> load(save(Path("checkpoints"), 1, {"step": 1}, keep=1))
    {'step': 1}
    """
    content = read_regular(path)
    found = f"{crc32(content):08x}"
    if found != path.stem.rpartition("-")[2]:
        raise FiretrainError(
            f"{path}: damaged: its {len(content)} bytes have the checksum {found}, not the one in its name"
        )
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        raise FiretrainError(f"{path}: not a readable checkpoint: {error}") from error
    return state


def _all(folder: Path) -> list[Path]:
    """All checkpoints, oldest first."""
    return sorted(folder.glob("step-*-????????.pt"))
