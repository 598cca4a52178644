"""Loads the weights of a model from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from firetrain.coding.file import read
from firetrain.config.sections.model import TORCH_ENDINGS
from firetrain.errors import UserError


def load_weights(model: nn.Module, path: Path) -> None:
    """Load all weights and statistics of a model from a compressed model or a state dict (.pt, read without running code).

    UserError, which names what differs, if the file is not readable, or not that of this model.
    """
    state = _state(path)
    own = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
    wrong = [f"{name}: missing" for name in own if name not in state]
    wrong += [f"{name}: not in the model" for name in state if name not in model.state_dict()]
    wrong += [
        f"{name}: {list(state[name].shape)} in the file, {list(value.shape)} in the model"
        for name, value in own.items()
        if name in state and state[name].shape != value.shape
    ]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise UserError(f"{path} does not have the weights of this model: {'; '.join(wrong[:3])}{more}")
    model.load_state_dict({name: value for name, value in state.items() if name in own}, strict=False)


def _state(path: Path) -> dict[str, Tensor]:
    if path.suffix not in TORCH_ENDINGS:
        return {name: torch.from_numpy(array) for name, array in read(path).state().items()}
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(f"{path}: not a readable state dict: {str(error).partition(chr(10))[0]}") from None
    found = found.get("model", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError(f"{path}: not a state dict: a dict of tensors by name")
    return {str(name): value for name, value in found.items()}
