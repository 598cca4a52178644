"""Models of the user's own: imported, made, and refused if they cannot be trained."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import nn

from firetrain.config.imported import explained, line_of, load_own
from firetrain.config.own import Own
from firetrain.errors import UserError
from firetrain.generators import restore_generators, states_of_generators
from firetrain.models.dropout import Dropout, dropouts_of, set_dropout_keys
from firetrain.models.graph import refuse_other_evaluation

# what the number of classes is called where a model takes it
_CLASSES = ("classes", "num_classes")


def own_model(own: Own, arguments: Mapping[str, Any], classes: int) -> nn.Module:
    """The module that the user's function or class returns.

    It gets `arguments`, and the number of classes if it takes `classes` or `num_classes` and `arguments` does not have it; so
    does what takes any arguments, as torchvision's models do, unless it refuses them.
    torch.nn.Dropout is replaced by firetrain's, whose masks are the same on any number of ranks. UserError for what cannot be
    imported, called or trained.
    """
    make = load_own(own)
    given = dict(arguments)
    with explained(own, "failed when it was called"):
        model = _made(make, given, classes)
    if not isinstance(model, nn.Module):
        raise UserError(f"{own} returns {type(model).__name__}, not a torch.nn.Module")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise UserError(
            f"{own} has lazy layers, whose sizes are not known before the first images: give their input sizes"
        )
    others = {str(p.dtype) for p in model.parameters() if p.requires_grad and p.dtype != torch.float32}
    if others:
        halves = others <= {"torch.bfloat16", "torch.float16"}
        raise UserError(
            f"{own}: parameters must be float32 (got {', '.join(sorted(others))}): "
            f"{'precision: bfloat16 computes in 16 bits' if halves else 'call .float() on the model'}"
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise UserError(f"{own} has no parameters that are trained")
    return _with_keyed_dropout(model)


def _made(make: Callable[..., Any], given: Mapping[str, Any], classes: int) -> Any:
    parameters = inspect.signature(make).parameters
    if given.keys() & set(_CLASSES):
        return make(**given)
    if named := {name: classes for name in _CLASSES if name in parameters}:
        return make(**given, **named)
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        with suppress(TypeError):
            return make(**given, num_classes=classes)
    return make(**given)


def refuse_untrainable_output(model: nn.Module, name: str, classes: int, image_size: int) -> None:
    """UserError unless the model maps images of this size to one number for each class; in training perhaps to several such."""
    before = states_of_generators()
    for training in (False, True):
        try:
            found = _tried(model.train(training), image_size)
        except Exception as error:  # the user's code may raise anything
            raise UserError(
                f"{name} cannot take images of {image_size} x {image_size} pixels{' in training' if training else ''}: "
                f"{type(error).__name__}: {error}{line_of(error)}"
            ) from None
        finally:
            model.train()
            restore_generators(before)
        # the loss of further outputs is that of GoogLeNet's auxiliary classifiers
        outputs = list(found) if training and isinstance(found, tuple) else [found]
        shapes = [list(one.shape) if isinstance(one, torch.Tensor) else type(one).__name__ for one in outputs]
        if not shapes or any(shape != [2, classes] for shape in shapes):
            raise UserError(
                f"{name} must return [images, classes] = [2, {classes}] for 2 images (got "
                f"{', '.join(map(str, shapes)) or 'nothing'}{' in training' if training else ''})"
            )


def draws(model: nn.Module, image_size: int) -> bool:
    """Whether a forward pass in training draws random numbers, which dropout with keys does not; on the CPU."""
    before = states_of_generators()
    set_dropout_keys(model, torch.zeros(2, dtype=torch.int64))
    try:
        _tried(model.train(), image_size)
        return not all(map(_equal, before, states_of_generators()))
    except Exception:  # training tells what is wrong
        return False
    finally:
        restore_generators(before)
        for dropout in dropouts_of(model):
            dropout.keys = None


def refuse_changed_by_placement(model: nn.Module, name: str, image_size: int) -> None:
    """UserError if the model would compute otherwise in slices: if it draws random numbers, or evaluates by other operations."""
    if draws(copy.deepcopy(model).cpu(), image_size):
        raise UserError(
            f"{name} draws random numbers in training, other ones on each rank: only data-parallel trains it; torch.nn.Dropout "
            "is the same on all ranks"
        )
    refuse_other_evaluation(model, image_size)


def _equal(one: Any, other: Any) -> bool:
    """Whether two states of a generator are equal."""
    if isinstance(one, tuple):
        return all(map(_equal, one, other))
    return bool(np.array_equal(one, other))


def _tried(model: nn.Module, image_size: int) -> Any:
    """What the model makes of two black images; it stays as it is."""
    kept = copy.deepcopy(model.state_dict())
    buffers = [(name, buffer, buffer.clone()) for name, buffer in model.named_buffers()]  # also those of no state
    try:
        with torch.no_grad():
            return model(torch.zeros(2, 3, image_size, image_size, device=next(model.parameters()).device))
    finally:
        model.load_state_dict(kept)
        for name, buffer, values in buffers:
            parent, _, attribute = name.rpartition(".")
            if not torch.equal(buffer, values):
                buffer.copy_(values)
            setattr(model.get_submodule(parent), attribute, buffer)


def _with_keyed_dropout(model: nn.Module) -> nn.Module:
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # named_children leaves out a module that has come before
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p, inplace=child.inplace).train(child.training))
    return model
