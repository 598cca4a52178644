"""Writes the weights of a compressed model as a state dict of torch."""

from __future__ import annotations

import io
from pathlib import Path

import torch

from firetrain.coding.file import read
from firetrain.errors import CannotCreate
from firetrain.records.file import write_whole


def write_state(file: Path, out: Path) -> int:
    """Write the state dict; returns its number of tensors. UserError if `file` cannot be read, CannotCreate if `out` cannot."""
    state = {name: torch.from_numpy(array.copy()) for name, array in read(file).state().items()}
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_whole(out, buffer.getvalue(), kind=CannotCreate)
    return len(state)
