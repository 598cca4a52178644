"""YAML text as data, with the place of every key, and the mistakes that YAML itself lets pass.

PyYAML follows YAML 1.1: it reads `1e-4` as text and `on` as a boolean. The loader here resolves numbers and booleans
as YAML 1.2 does (core schema, section 10.3.2), and refuses duplicate keys.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Place:
    """Where a value was written: a file with line and column (from 1), or an option of the command line."""

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong, where, and what would be right."""

    place: Place
    path: Path
    what: str

    def __str__(self) -> str:
        path = ".".join(map(str, self.path))
        return f"{self.place}: {path}: {self.what}" if path else f"{self.place}: {self.what}"


@dataclass
class Document:
    """Plain data (dicts, lists, scalars), the place of each path in it, and the mistakes met on the way."""

    source: str
    data: dict[str, Any] = field(default_factory=dict)
    places: dict[Path, Place] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)

    def place(self, path: Path) -> Place:
        """The place of `path`, or of the nearest section around it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.places:
                return self.places[path[:length]]
        return Place(self.source, 1, 1)


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's numbers and booleans."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in ("bool", "float", "int")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?[0-9]+$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)
# YAML 1.1 reads 010 as eight; 1.2, and everybody who writes a config, as ten
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))


def read_document(text: str, source: str) -> Document:
    """Parse a YAML mapping; what is wrong with it is listed in the result, nothing is raised."""
    document = Document(source)
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if isinstance(node, yaml.MappingNode):
            document.data = _mapping(document, loader, node, ())
        elif node is not None:
            document.mistakes.append(Mistake(_place(document, node), (), "expected a mapping of sections"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(source, mark.line + 1, mark.column + 1) if mark else Place(source, 1, 1)
        document.mistakes.append(Mistake(place, (), f"not YAML: {error.problem or error.context}"))
    except yaml.YAMLError as error:
        document.mistakes.append(Mistake(Place(source, 1, 1), (), f"not YAML: {error}"))
    finally:
        loader.dispose()
    return document


def read_scalar(text: str) -> Any:
    """The value that `text` has after `key:` in a file: a number, a boolean, a list, a mapping or a string."""
    return yaml.load(text, Loader=_Loader)


def _place(document: Document, node: yaml.Node) -> Place:
    return Place(document.source, node.start_mark.line + 1, node.start_mark.column + 1)


def _value(document: Document, loader: _Loader, node: yaml.Node, path: Path) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _mapping(document, loader, node, path)
    if isinstance(node, yaml.SequenceNode):
        return [_item(document, loader, item, (*path, index)) for index, item in enumerate(node.value)]
    return loader.construct_object(node, deep=True)


def _item(document: Document, loader: _Loader, node: yaml.Node, here: Path) -> Any:
    document.places[here] = _place(document, node)
    return _value(document, loader, node, here)


def _mapping(document: Document, loader: _Loader, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else str(key_node.start_mark)
        here = (*path, key)
        if key in result:
            first = document.places[here]
            what = f"written twice, first in line {first.line}; keep one"
            document.mistakes.append(Mistake(_place(document, key_node), here, what))
            continue
        document.places[here] = _place(document, key_node)
        result[key] = _value(document, loader, value_node, here)
    return result
