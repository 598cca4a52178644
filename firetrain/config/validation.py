"""Check a YAML document by a schema; all mistakes are reported together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from firetrain.config.document import Document, Mistake, is_yaml
from firetrain.errors import UserError, control_character, nearest

Schema = TypeVar("Schema", bound=BaseModel)


class ConfigError(UserError):
    """All mistakes of a config, one per line as `file:line:column: path: what`.

    >>> from firetrain.config import load_config
    >>> try:
    ...     load_config("quickstart", ["sed=2", "batch.global_size=-1"])
    ... except ConfigError as error:
    ...     print(error)
    --set batch.global_size=-1: batch.global_size: must be greater than or equal to 1 (got -1)
    --set sed=2: sed: unknown key, did you mean seed?...
    """

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(map(str, mistakes)))

    def at(self, sources: Mapping[str, str]) -> ConfigError:
        """The same mistakes, where those of some sources are told to be in others."""
        return ConfigError(
            [
                replace(
                    one, position=replace(one.position, source=sources.get(one.position.source, one.position.source))
                )
                for one in self.mistakes
            ]
        )


def validate(document: Document, schema: type[Schema]) -> Schema:
    """The content of a document as an object of `schema`; ConfigError lists all mistakes."""
    found: Schema | None = None
    mistakes = [*document.mistakes, *_control_characters(document, document.data)]
    if is_yaml(document):
        try:
            found = schema.model_validate(document.data)
        except ValidationError as error:
            # pydantic also reports a list as too short if all of its entries are wrong, and reports each of these too
            details = [one for one in error.errors() if not (one["type"] == "too_short" and one["input"])]
            mistakes += _joined([_mistake(document, schema, detail) for detail in details])
    if mistakes or found is None:
        raise ConfigError(
            sorted(mistakes, key=lambda m: (m.position.source, m.position.line or 0, m.position.column or 0))
        )
    return found


def _control_characters(document: Document, value: Any, path: tuple[str | int, ...] = ()) -> Iterator[Mistake]:
    """A mistake for each text with a control character, because outputs and records repeat the values of a config."""
    if isinstance(value, str) and (character := control_character(value)):
        yield Mistake(document.position(path), path, f"contains the control character {character} (got {value!r})")
    elif isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _control_characters(document, part, (*path, key))


def _joined(mistakes: Sequence[Mistake]) -> list[Mistake]:
    """The mistakes, in which a value that is none of several types is one: pydantic reports it for each of the types."""
    found: dict[tuple[tuple[str | int, ...], str], Mistake] = {}
    for number, one in enumerate(mistakes):
        expected, _, given = one.what.removeprefix("must be ").rpartition(" (got ")
        names_a_type = one.what.startswith(("must be a ", "must be an ")) and given
        key = one.path, given if names_a_type else str(number)
        before = found.get(key)
        what = (
            f"{before.what.rpartition(' (got ')[0].replace(' or ', ', ')} or {expected} (got {given}"
            if before
            else one.what
        )
        found[key] = replace(one, what=what)
    return list(found.values())


def _mistake(document: Document, schema: type[BaseModel], detail: Any) -> Mistake:
    """Translate an error of pydantic into a Mistake."""
    path = tuple(detail["loc"]) + getattr(detail.get("ctx", {}).get("error"), "path", ())
    names_a_key = detail["type"] in ("missing", "extra_forbidden")
    while path and path not in document.positions and _section_at(schema, path) is None and not names_a_key:
        path = path[:-1]  # pydantic appends the member of a union to the path
    return Mistake(document.position(path), path, _what(schema, detail, path))


def _what(schema: type[BaseModel], detail: Any, path: tuple[str | int, ...]) -> str:
    kind, given = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        section = _section_at(schema, path[:-1])
        valid = list(section.model_fields) if section else []
        meant = nearest(str(path[-1]), valid)
        return f"unknown key{f', did you mean {meant}?' if meant else ''} (valid: {', '.join(valid)})"
    if kind == "too_short":
        return f"must not be empty (got {given!r})"
    if kind == "missing":
        return "is required and not given"
    if kind == "literal_error":
        valid = detail["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
        meant = nearest(str(given), valid.split(", "))
        return f"must be one of {valid}{f', did you mean {meant}?' if meant else ''} (got {given!r})"
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    if kind == "string_pattern_mismatch":
        return f"must match {detail['ctx']['pattern']} (got {given!r})"
    message = (
        detail["msg"]
        .removeprefix("Input should be ")
        .replace("a valid integer", "an integer")
        .replace("a valid ", "a ")
    )
    if kind in ("tuple_type", "list_type"):
        message = "a list"
    if kind in ("model_type", "dict_type"):
        message = "a section with keys of its own"
    return f"must be {message} (got {given!r})"


def _section_at(model: type[BaseModel], path: tuple[str | int, ...]) -> type[BaseModel] | None:
    """The class of the section at `path`, also below names that a user chooses; None if the schema has none there."""
    found: Any = model
    for part in path:
        if get_origin(found) is dict:
            found = get_args(found)[1]
        else:
            info = found.model_fields.get(str(part))
            found = None if info is None else _without_none(info.annotation)
        if not (get_origin(found) is dict or (isinstance(found, type) and issubclass(found, BaseModel))):
            return None
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def _without_none(annotation: Any) -> Any:
    """The other member of a union with None; another annotation as it is."""
    members = [one for one in get_args(annotation) if one is not NoneType]
    return members[0] if isinstance(annotation, UnionType) and len(members) == 1 else annotation
