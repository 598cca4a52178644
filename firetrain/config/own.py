"""Names of a user's own code, `package.module:attribute` or `file.py:attribute`, found without importing it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from firetrain.config.files import is_file, read_bytes, user_path
from firetrain.config.names import entry_point, installed_names
from firetrain.errors import UserError, nearest

# far above any file that a person has written
_MOST_BYTES = 4 << 20


class Own(NamedTuple):
    """Code of the user's own: a module or file, and the name in it.

    - `source`: dotted name of a module, or a file, ending in .py. `attribute`: dotted name of a function or class in it.
    - `folder`: from which the module is imported; None if it is installed.
    """

    source: str
    attribute: str
    folder: Path | None = None

    @property
    def is_file(self) -> bool:
        """Whether the source is a file."""
        return self.source.endswith(".py")

    @property
    def without_folder(self) -> str:
        """The name without the folder of its file, which is another one on another machine."""
        return f"{Path(self.source).name if self.is_file else self.source}:{self.attribute}"

    def __str__(self) -> str:
        return f"{self.source}:{self.attribute}"

    @classmethod
    def of(cls, name: str, folder: str | None, group: str) -> Own | None:
        """The code that a section names, also as an entry point of `group`; None if it names something of firetrain's."""
        if ":" in name:
            return cls.parse(name)._replace(folder=Path(folder) if folder else None)
        return cls.parse(entry_point(group, name).value) if name in installed_names(group) else None

    @classmethod
    def parse(cls, text: str) -> Own:
        """The name in a text; UserError if it is not written like one."""
        source, _, attribute = text.rpartition(":")
        dotted = [*attribute.split("."), *([] if source.endswith(".py") else source.split("."))]
        if not source or not all(part.isidentifier() for part in dotted):
            raise UserError(f"cannot read {text!r}: code of your own is package.module:name, or ./file.py:name")
        return cls(source, attribute)


def find_own(text: str, folders: Sequence[Path], arguments: Iterable[str] = ()) -> Own:
    """The code that a text names, looked for in `folders`, and then among the installed packages; nothing is imported.

    A file gets its absolute path. UserError if it is not found, says where it was looked for, or names the nearest attribute;
    also if it does not take one of the `arguments`, as far as can be seen without running it.
    """
    own = Own.parse(text)
    looked = " and ".join(map(str, dict.fromkeys(folders)))
    if own.is_file:
        files = [folder / user_path(own.source) for folder in folders]
        found = next((file for file in files if is_file(file)), None)
        if found is None:
            raise UserError(f"{own}: no file {own.source} (looked in {looked})")
        _refuse_missing(own, found, arguments)
        return own._replace(source=str(found.absolute()), folder=found.absolute().parent)
    parts = own.source.split(".")
    for folder in folders:
        if (file := _file_of(folder, parts)) is not None:
            _refuse_missing(own, file, arguments)
            return own._replace(folder=folder.absolute())
    try:  # ValueError: of modules that were made without being found, such as __main__
        package = find_spec(parts[0]) if parts[0] != "__main__" else None
    except ValueError:
        package = None
    if package is None:
        raise UserError(f"{own}: no module {parts[0]} (looked in {looked}, and among the installed packages)")
    for number in range(
        1, len(parts)
    ):  # as the import would find it; `find_spec` of a submodule would import its package
        inside = package.submodule_search_locations
        found_in = PathFinder.find_spec(".".join(parts[: number + 1]), inside) if inside is not None else None
        if found_in is None:
            raise UserError(
                f"{own}: no module {parts[number]} in {'.'.join(parts[:number])} ({package.origin or inside})"
            )
        package = found_in
    if package.origin is not None and package.origin.endswith(".py"):
        _refuse_missing(own, Path(package.origin), arguments)
    return own


def _file_of(folder: Path, parts: Sequence[str]) -> Path | None:
    """The file of a module below a folder, a package before a module of its name, as Python has it; None if there is none."""
    path = folder.joinpath(*parts)
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if is_file(file)), None)


def _refuse_missing(own: Own, file: Path, arguments: Iterable[str]) -> None:
    """UserError if the file does not define the attribute, or if that does not take these arguments."""
    try:
        module = ast.parse(read_bytes(file, _MOST_BYTES, "Python file"), str(file))
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise UserError(f"{file}{line}: not Python: {error.msg if isinstance(error, SyntaxError) else error}") from None
    defined = _names_in(file, module)
    first = own.attribute.partition(".")[0]
    if first not in defined and not defined & {"*", "__getattr__"}:
        meant = nearest(first, defined)
        raise UserError(f"{file} has no {first}{f', did you mean {meant}?' if meant else ''}")
    if _is_value(module.body, own.attribute):
        raise UserError(f"{file}: {own.attribute} is a value, not a function or class")
    taken = _taken(module.body, own.attribute)
    for name in arguments:
        if taken is not None and name not in taken:
            meant = nearest(name, taken)
            raise UserError(f"{own} takes no argument {name}{f', did you mean {meant}?' if meant else ''}")


def _names_in(file: Path, module: ast.Module, seen: frozenset[Path] = frozenset()) -> set[str]:
    """The names that a module defines, and takes over from modules beside it; with `*` if there may be others."""
    names = set(_defined(module.body)) - {"*"}
    for statement in ast.walk(module):
        if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
            names |= _names_beside(file, statement, seen | {file})
    return names


def _names_beside(file: Path, statement: ast.ImportFrom, seen: frozenset[Path]) -> set[str]:
    """What `from .module import *` brings; `*` if that cannot be seen, as of other packages."""
    if not (statement.level and statement.module):
        return {"*"}
    other = _file_of(file.parents[statement.level - 1], statement.module.split("."))
    if other is None or other in seen:
        return {"*"} if other is None else set()
    try:
        return _names_in(other, ast.parse(read_bytes(other, _MOST_BYTES, "Python file")), seen)
    except (SyntaxError, ValueError, RecursionError, UserError):
        return {"*"}


def _is_value(body: Sequence[ast.stmt], name: str) -> bool:
    """Whether all that a module does with a name is to assign numbers, texts or the like to it, which cannot be called."""
    plain = (ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.JoinedStr)
    assigned = [
        one.value
        for one in body
        if isinstance(one, ast.Assign | ast.AnnAssign) and name in _defined([one])
        if all(
            isinstance(target, ast.Name) for target in (one.targets if isinstance(one, ast.Assign) else [one.target])
        )
    ]
    defined = list(_defined(body))
    is_all = 0 < defined.count(name) == len(assigned) and "*" not in defined
    return is_all and all(isinstance(one, plain) for one in assigned)


def _taken(body: Iterable[ast.stmt], name: str, *, is_method: bool = False) -> list[str] | None:
    """The arguments of a function, or of a class when it is made; None if they cannot be seen, or may be any."""
    found = next((one for one in body if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name == name), None)
    if found is None or found.decorator_list:
        return None
    if isinstance(found, ast.ClassDef):
        return _taken(found.body, "__init__", is_method=True)
    arguments = found.args
    by_name = arguments.args[1:] if is_method and not arguments.posonlyargs else arguments.args
    return None if arguments.kwarg else [one.arg for one in (*by_name, *arguments.kwonlyargs)]


def _defined(body: Iterable[ast.stmt]) -> Iterable[str]:
    """The names that statements define; `*` if they import all names of a module."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in statement.names)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
        else:  # if, try, with
            for part in ("body", "orelse", "finalbody"):
                yield from _defined(getattr(statement, part, ()))
            for handler in getattr(statement, "handlers", ()):
                yield from _defined(handler.body)
