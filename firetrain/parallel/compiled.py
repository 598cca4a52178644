"""Compiles a model before training starts; after that, compiling again is an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn

from firetrain.data.batch import Normalised
from firetrain.errors import FiretrainError

# blocks of one class share their code, and torch gives up compiling code that has more variants than this (8 by default)
_MOST_VARIANTS = 256


def compiled(normalised: Normalised, unit: str) -> nn.Module:
    """The model, to be compiled at its first call: with the normalisation (`unit` model), or each block of it (block).

    The backward pass of a model that is compiled as a whole produces all gradients at its end, so that no communication can
    overlap with it. Blocks produce theirs one after another, but operations of different blocks are not fused.
    """
    if unit == "model":
        return cast(nn.Module, torch.compile(normalised, dynamic=False))
    normalised.normalise = _compiled_chain([normalised.normalise])  # type: ignore[assignment, method-assign]
    for child in normalised.model.children():
        if isinstance(child, nn.Sequential):
            child.forward = _one_after_another([_compiled_chain(block) for block in blocks(child)])  # type: ignore[method-assign]
        elif _has_parameters(child):
            child.forward = _compiled_chain([child.forward])
    return normalised


def blocks(sequence: nn.Sequential) -> list[list[nn.Module]]:
    """The blocks of a sequence: each begins with a module that has parameters, and includes those without that follow it."""
    found: list[list[nn.Module]] = [[]]
    for module in sequence:
        if _has_parameters(module) and any(map(_has_parameters, found[-1])):
            found.append([])
        found[-1].append(module)
    return found


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _one_after_another(calls: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """A function that passes its argument through all `calls`."""

    def forward(x: Any) -> Any:
        for call in calls:
            x = call(x)
        return x

    return forward


def _compiled_chain(calls: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """As `_one_after_another`, compiled at the first call.

    nn.Module.compile would silently leave torch's own layers as they are.
    """
    chain: Callable[[Any], Any] = torch.compile(_one_after_another(calls), dynamic=False)
    return chain


@contextmanager
def compiling(*, only_now: bool) -> Iterator[None]:
    """Context manager: models may be compiled. With `only_now`, compiling after this block raises an error."""
    settings = torch._dynamo.config
    torch._dynamo.reset()
    settings.cache_size_limit = max(settings.cache_size_limit, _MOST_VARIANTS)
    settings.error_on_recompile = False
    yield
    settings.error_on_recompile = only_now


@contextmanager
def nothing_recompiled() -> Iterator[None]:
    """Context manager: FiretrainError, with torch's reason, if a model would have to be compiled again."""
    try:
        yield
    except torch._dynamo.exc.RecompileError as error:
        raise FiretrainError(
            "the compiled model does not fit this batch, although it was compiled for all sizes before the first step; set "
            f"compile: false, and please report this: {error}"
        ) from error
