"""Imports code of the user's own; every failure becomes a UserError with the line that raised it."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from firetrain.config.own import Own
from firetrain.errors import FiretrainError, UserError, nearest


def load_own(own: Own) -> Callable[..., Any]:
    """The user's function or class; UserError with the user's own line if it cannot be imported."""
    with explained(own, "cannot be imported"):
        module = _imported(own)
        try:
            found: Callable[..., Any] = attrgetter(own.attribute)(module)
        except AttributeError:
            meant = nearest(own.attribute, dir(module))
            raise UserError(
                f"{own.source} has no {own.attribute}{f', did you mean {meant}?' if meant else ''}"
            ) from None
    if not callable(found):
        raise UserError(f"{own} is {type(found).__name__}, not a function or class")
    return found


def _imported(own: Own) -> ModuleType:
    with _first_on_path(own.folder):
        if not own.is_file:
            return importlib.import_module(own.source)
        name = Path(own.source).stem
        if name in sys.modules and getattr(sys.modules[name], "__file__", None) != own.source:
            name = f"{name} of {Path(own.source).parent}"  # others may need the module that has the name already
        if name in sys.modules:
            return sys.modules[name]
        spec = spec_from_file_location(name, own.source)
        assert spec is not None and spec.loader is not None, "internal error: a file without a loader"
        module = sys.modules[name] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module


@contextmanager
def _first_on_path(folder: Path | None) -> Iterator[None]:
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # stays: modules may import others later
    yield


@contextmanager
def explained(own: Own, what: str) -> Iterator[None]:
    """Context manager: turn an exception of the user's code into a UserError with the line that raised it."""
    try:
        yield
    except (FiretrainError, KeyboardInterrupt):
        raise
    except BaseException as error:  # also SystemExit of a script without a main guard
        raise UserError(f"{own} {what}: {type(error).__name__}: {error}{line_of(error)}") from error


def line_of(error: BaseException) -> str:
    """The last line outside firetrain and torch that an exception passed, as text to append."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [
        Path(module.__file__).parent
        for name in ("firetrain", "torch", "importlib")
        if (module := sys.modules.get(name)) and module.__file__
    ]
    own = [frame for frame in frames if not any(Path(frame.filename).is_relative_to(folder) for folder in ours)]
    own = [frame for frame in own if not frame.filename.startswith("<")]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
