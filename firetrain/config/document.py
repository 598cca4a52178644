"""Parse YAML into plain data with the position of every key, and reject mistakes that PyYAML accepts.

PyYAML follows YAML 1.1: it reads `1e-4` as text and `on` as a boolean. The loader here resolves scalars as in YAML 1.2
(core schema, section 10.3.2): null, booleans and numbers; dates remain text. It rejects duplicate keys, and documents whose
nesting or expanded size is far above that of a config.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import yaml

Path = tuple[str | int, ...]

# far above any valid config; protects against documents that expand to fill memory
_MOST_LEVELS = 32
_MOST_VALUES = 10_000
_NOT_YAML = "not YAML: "


@dataclass(frozen=True)
class Position:
    """Where a value was written: a file with line and column (from 1), or an option of the command line."""

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Mistake:
    """A mistake: its position, the path of its key, and a text that says what is wrong and what would be right."""

    position: Position
    path: Path
    what: str

    def __str__(self) -> str:
        path = ".".join(map(str, self.path))
        is_named = (
            not path or self.position.source == f"--{path.replace('_', '-')}"
        )  # the option has the name of the key
        return f"{self.position}: {self.what}" if is_named else f"{self.position}: {path}: {self.what}"


@dataclass
class Document:
    """A parsed text: plain data (dicts, lists, scalars), the position of each path in it, and the mistakes found."""

    source: str
    data: dict[str, Any] = field(default_factory=dict)
    positions: dict[Path, Position] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)

    def position(self, path: Path) -> Position:
        """The position of `path`, or of the nearest section around it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.positions:
                return self.positions[path[:length]]
        return Position(self.source, 1, 1)


class _YamlLoader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2 and a limited depth of nesting."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._level = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose the next node; MarkedYAMLError below `_MOST_LEVELS` levels, before the rest of the text is scanned."""
        self._level += 1
        if self._level > _MOST_LEVELS:
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem=f"nested more than {_MOST_LEVELS} levels deep", problem_mark=mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self._level -= 1


_YamlLoader.yaml_implicit_resolvers = {
    first: kept
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    if (kept := [(tag, pattern) for tag, pattern in resolvers if tag == "tag:yaml.org,2002:null"])
}
_YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_YamlLoader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?[0-9]+$"), list("-+0123456789"))
_YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)
# YAML 1.1 reads 010 as eight, YAML 1.2 as ten
_YamlLoader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))


@lru_cache(maxsize=32)
def _parsed(text: str) -> yaml.Node | None:
    """The nodes of a text, which are only read; a comparison reads the same few configs many times."""
    found: yaml.Node | None = _YamlLoader(text).get_single_node()
    return found


def read_document(text: str, source: str) -> Document:
    """Parse a YAML mapping. Mistakes are listed in the result; nothing is raised."""
    document = Document(source)
    try:
        node = _parsed(text)
        if isinstance(node, yaml.MappingNode):
            document.data = _Values(document, _YamlLoader("")).mapping(node, ())
        elif node is not None:
            document.mistakes.append(Mistake(_position(document, node), (), "expected a mapping of sections"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = Position(source, mark.line + 1, mark.column + 1) if mark else Position(source, 1, 1)
        document.mistakes.append(Mistake(position, (), f"{_NOT_YAML}{error.problem or error.context}"))
    except yaml.reader.ReaderError as error:
        position = position_in(text, int(error.position), source)
        what = f"{_NOT_YAML}the character {chr(int(error.character))!r} is not allowed in it"
        document.mistakes.append(Mistake(position, (), what))
    return document


def is_yaml(document: Document) -> bool:
    """Whether the text could be parsed at all."""
    return not any(mistake.what.startswith(_NOT_YAML) for mistake in document.mistakes)


def position_in(text: str, offset: int, source: str) -> Position:
    """The line and column (from 1) of the character at index `offset` (from 0) in a text."""
    before = text[:offset]
    return Position(source, before.count("\n") + 1, offset - before.rfind("\n"))


def read_scalar(text: str) -> Any:
    """The value that `text` would have after `key:` in a file: number, boolean, list, mapping or string.

    YAMLError if it is not a YAML value.
    """
    loader = _YamlLoader(text)
    node = loader.get_single_node()
    return None if node is None else _Values(Document("value"), loader).value(node, ())


def _position(document: Document, node: yaml.Node) -> Position:
    return Position(document.source, node.start_mark.line + 1, node.start_mark.column + 1)


class _Values:
    """Converts nodes to plain data and records the position of each.

    MarkedYAMLError for scalars that do not match the type of their tag, and for aliases that expand to too many values.
    """

    def __init__(self, document: Document, loader: _YamlLoader) -> None:
        self._document, self._loader = document, loader
        self._count = 0

    def value(self, node: yaml.Node, path: Path) -> Any:
        """The value of a node of any kind."""
        self._count += 1
        if self._count > _MOST_VALUES or len(path) > _MOST_LEVELS:
            problem = f"its aliases expand to more than {_MOST_VALUES:,} values, or to more than {_MOST_LEVELS} levels"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._item(item, (*path, index)) for index, item in enumerate(node.value)]
        try:
            return self._loader.construct_object(node, deep=True)
        except (ValueError, LookupError, TypeError, OverflowError, AttributeError):
            kind = node.tag.rpartition(":")[2]
            raise yaml.MarkedYAMLError(
                problem=f"{_short(node.value)} is not a valid {kind}", problem_mark=node.start_mark
            ) from None

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        """The value of a mapping, whose keys must be text."""
        document = self._document
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                what = "a list or a mapping cannot be a key; a key is a word"
                document.mistakes.append(Mistake(_position(document, key_node), path, what))
                continue
            key = key_node.value
            here = (*path, key)
            if key in result:
                first = document.positions[here]
                what = f"written twice, first in line {first.line}; keep one"
                document.mistakes.append(Mistake(_position(document, key_node), here, what))
                continue
            document.positions[here] = _position(document, key_node)
            result[key] = self.value(value_node, here)
        return result

    def _item(self, node: yaml.Node, here: Path) -> Any:
        self._document.positions[here] = _position(self._document, node)
        return self.value(node, here)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
