"""Saves and loads checkpoints, which are files in the folder `checkpoints` of a run."""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from firetrain.errors import FiretrainError, UserError
from firetrain.records.file import cannot_write, write_whole
from firetrain.records.saved import age, name_of, read_saved, saved_in, step_of


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
    path = folder / name_of(step, content)
    with cannot_write(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("*.draft"):  # drafts of attempts that were killed
            left.unlink()
    write_whole(path, content, settle=True)
    for old in saved_in(folder)[:-keep]:
        with cannot_write(old):
            old.unlink()
    return path


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The latest readable checkpoint, if there is one, and one message for each later checkpoint that is damaged.

    >>> newest(Path("nowhere"))
    (None, [])
    """
    wrong = []
    for path in reversed(saved_in(folder)):
        try:
            load(path)
        except FiretrainError as error:
            if path.is_symlink() or path.exists():  # the training of a run that goes on may have deleted it
                wrong.append(str(error))
        else:
            return path, wrong
    return None, wrong


def set_aside(folder: Path, newest: Path | None) -> None:
    """Rename the checkpoints after `newest`, which are damaged, with the suffix .damaged: they no longer count for `keep`."""
    for path in saved_in(folder):
        if newest is None or age(path) > age(newest):
            with suppress(OSError):
                path.replace(path.with_suffix(".damaged"))


def newest_step(folder: Path) -> int | None:
    """The step after which the latest checkpoint was saved; None if there is none.

    >>> path = save(Path("checkpoints"), 7, {"step": 7}, keep=2)
    >>> newest_step(Path("checkpoints"))
    7
    """
    found = saved_in(folder)
    return step_of(found[-1]) if found else None


def newest_model(run: Path) -> dict[str, torch.Tensor]:
    """The weights and statistics in the newest readable checkpoint of the run in this directory; UserError if it has none.

    Checkpoints that are damaged stay as they are, and stderr says which were skipped.

    >>> path = save(Path("run/checkpoints"), 120, {"model": {"weight": torch.ones(2)}}, keep=2)
    >>> newest_model(Path("run"))
    {'weight': tensor([1., 1.])}
    """
    folder = run / "checkpoints"
    path, wrong = newest(folder)
    if path is None:
        wrong += [f"{one} was damaged" for one in sorted(folder.glob("*.damaged"))]
        reason = (
            f"no readable checkpoint: {'; '.join(wrong)}"
            if wrong
            else "no checkpoint: checkpoint.every_epochs and checkpoint.every_steps say when a run saves one"
        )
        raise UserError(f"{run} has {reason}")
    for text in wrong:
        print(f"note: skipped checkpoint: {text}; the one after step {step_of(path)} is used", file=sys.stderr)
    model: dict[str, torch.Tensor] = load(path)["model"]
    return model


def load(path: Path) -> dict[str, Any]:
    """Load a checkpoint's state to the CPU. Only tensors and plain data are read, never code.

    FiretrainError if the file cannot be read, or if its bytes differ from those that were written.

    >>> load(save(Path("checkpoints"), 1, {"step": 1}, keep=1))
    {'step': 1}
    """
    content = read_saved(path)
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        raise FiretrainError(f"{path}: not a readable checkpoint: {error}") from error
    return state
