"""Loads the weights of a model from a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from firetrain.coding.file import read
from firetrain.coding.tensor import CompressedTensor
from firetrain.config.sections.model import TORCH_ENDINGS
from firetrain.errors import UserError


def load_weights(model: nn.Module, path: Path) -> None:
    """Load all weights and statistics of a model from a compressed model or a state dict (.pt, read without running code).

    UserError, which names what differs, if the file is not readable, or not that of this model.
    """
    found, known = _tensors(path), model.state_dict()
    own = {name: value for name, value in known.items() if value.is_floating_point()}
    # what is no float, such as a counter, is as the model has made it
    state = {name: value for name, value in found.items() if name in own or name not in known}
    refuse_differences(own, state, str(path))
    model.load_state_dict({name: _unpacked(value) for name, value in state.items()}, strict=False)


def refuse_differences(own: Mapping[str, Tensor], state: Mapping[str, Tensor | CompressedTensor], source: str) -> None:
    """UserError if the tensors of `state`, from `source`, are not those of a model by name and shape."""
    wrong = [f"{name}: missing" for name in own if name not in state]
    wrong += [f"{name}: not in the model" for name in state if name not in own]
    wrong += [
        f"{name}: {list(state[name].shape)} in the file, {list(value.shape)} in the model"
        for name, value in own.items()
        if name in state and tuple(state[name].shape) != tuple(value.shape)
    ]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise UserError(f"{source} does not have the weights of this model: {'; '.join(wrong[:3])}{more}")


def _tensors(path: Path) -> Mapping[str, Tensor | CompressedTensor]:
    """The tensors of a file by name; compressed ones are unpacked when the model is known to have their shapes."""
    if path.suffix not in TORCH_ENDINGS:
        return {one.name: one for one in read(path).tensors}
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError:
        raise UserError(
            f"{path}: not a readable state dict: it is damaged, or has more than tensors, which could run code and is not read; "
            "save model.state_dict() alone"
        ) from None
    except Exception as error:
        raise UserError(f"{path}: not a readable state dict: {str(error).partition(chr(10))[0]}") from None
    found = found.get("model", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError(f"{path}: not a state dict: a dict of tensors by name")
    return {str(name): value for name, value in found.items()}


def _unpacked(value: Tensor | CompressedTensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.from_numpy(value.array())
