"""The files of checkpoints, `step-00000120-1a2b3c4d.pt`, each named after its step and the CRC-32 of its bytes."""

from __future__ import annotations

import re
from pathlib import Path
from zlib import crc32

from firetrain.config.files import read_regular
from firetrain.errors import FiretrainError

_NAME = re.compile(r"step-\d+-[0-9a-f]{8}\.pt")


def name_of(step: int, content: bytes) -> str:
    """The name of the checkpoint after `step` steps.

    >>> name_of(120, b"content")
    'step-00000120-fec530a9.pt'
    """
    return f"step-{step:08d}-{crc32(content):08x}.pt"


def saved_in(folder: Path) -> list[Path]:
    """All checkpoints in a folder, oldest first; copies under other names are none."""
    return sorted((path for path in folder.glob("step-*.pt") if _NAME.fullmatch(path.name)), key=age)


def age(path: Path) -> tuple[int, str]:
    """A key by which older checkpoints come first."""
    return step_of(path), path.name


def step_of(path: Path) -> int:
    """The step after which a checkpoint was saved."""
    return int(path.name.split("-")[1])


def read_saved(path: Path) -> bytes:
    """The content of a checkpoint; FiretrainError if it cannot be read, or if its bytes differ from those that were written."""
    content = read_regular(path)
    found = f"{crc32(content):08x}"
    if found != path.stem.rpartition("-")[2]:
        raise FiretrainError(
            f"{path}: damaged: its {len(content)} bytes have the checksum {found}, not the one in its name"
        )
    return content
