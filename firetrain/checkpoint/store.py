"""One file per checkpoint, `epoch-0012.pt`, in the run's folder `checkpoints`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from firetrain.errors import CannotCreate, FiretrainError


def save(folder: Path, epoch: int, state: dict[str, Any], keep: int) -> Path:
    """Write `state` (tensors, numbers, dicts) as the checkpoint after `epoch` epochs; the newest `keep` stay.

    The file appears under its name only when it is complete. CannotCreate if it cannot be written.
    """
    path = folder / f"epoch-{epoch:04d}.pt"
    draft = path.with_suffix(".draft")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(state, draft)
        draft.replace(path)
        for old in sorted(folder.glob("epoch-*.pt"))[:-keep]:
            old.unlink()
    except (OSError, RuntimeError) as error:
        raise CannotCreate(f"{path}: cannot write the checkpoint: {error}") from error
    return path


def newest(folder: Path) -> Path | None:
    """The latest complete checkpoint, if there is one."""
    return max(folder.glob("epoch-*.pt"), default=None)


def load(path: Path) -> dict[str, Any]:
    """A checkpoint's state on the CPU; only tensors and plain data are read, never code."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise FiretrainError(f"{path}: not a checkpoint that can be read: {error}") from error
    return state
