"""Load a config by shipped name or path, with `--set` overrides; all mistakes are reported together."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel

from firetrain.config.document import Document, Mistake, Position, read_document, read_scalar
from firetrain.config.files import exists, is_file, read_text, user_path
from firetrain.config.names import AUTO_STRATEGY
from firetrain.config.own import find_own
from firetrain.config.schema import Config
from firetrain.config.sections.data import DataSection
from firetrain.config.sections.model import ModelSection
from firetrain.config.shipped import shipped
from firetrain.config.validation import ConfigError, validate
from firetrain.errors import UserError, unknown
from firetrain.limits import MOST_IMAGES

# more than any key has; deeper sections would exhaust the stack
_MOST_LEVELS = 16
# sections that may name code of the user's own
OwnSection = TypeVar("OwnSection", ModelSection, DataSection)


@dataclass(frozen=True)
class Loaded:
    """A valid config, and the origin of each of its values (a default has none).

    >>> rows = load_config("quickstart", ["seed=2"]).rows()
    >>> next(row for row in rows if row[0] == "seed")
    ('seed', 2, '--set seed=2')
    """

    config: Config
    source: str
    positions: Mapping[tuple[str | int, ...], Position]

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """(dotted path, value, origin) for every key, in the schema's order."""
        for path, value in leaves(self.config):
            position = self.positions.get(path)
            yield ".".join(path), value, str(position) if position else "default"

    def annotated(self) -> str:
        """The whole config as YAML, each value followed by its origin; it loads back to the same config."""
        lines, section = [], ""
        for path, value, origin in self.rows():
            head, _, key = path.rpartition(".")
            if head and head != section:
                lines.append(f"{head}:")
            section = head
            text = f"{'  ' if head else ''}{key or path}: {_flow(value)}"
            # the origin is a file name or the typed text, so it may contain any character
            lines.append(f"{text:<44}  # {origin.encode('unicode_escape').decode()}")
        return "\n".join(lines) + "\n"


def leaves(model: BaseModel, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every (path, value) below `model`, in the schema's order; sections are replaced by their own values."""
    for key in type(model).model_fields:
        value = getattr(model, key)
        if isinstance(value, BaseModel):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def shipped_configs() -> dict[str, Path]:
    """The configs that come with firetrain, by name.

    >>> "quickstart" in shipped_configs()
    True
    """
    return shipped("firetrain.configs", "configs")


def find_config(name: str, comparisons: Mapping[str, Path] | None = None) -> Path:
    """The file of a shipped config's name or of a path; UserError with the nearest name if there is none.

    `comparisons`: files by name, of which one may be meant, too.

    >>> find_config("quickstart").name
    'quickstart.yaml'
    """
    if os.sep not in name and not name.endswith((".yaml", ".yml")):
        known = {**shipped_configs(), **(comparisons or {})}
        if name in known:
            return known[name]
        kind = "config or comparison" if comparisons else "config"
        raise UserError(unknown(kind, name, known) + "; a file is given as a path: ./my.yaml")
    path = user_path(name)
    if not exists(path):
        raise UserError(f"no such config file: {path} (looked from {Path.cwd()})")
    return path


def load_config(name: str, overrides: Iterable[str] = ()) -> Loaded:
    """The config named `name` (shipped, or a path) with `a.b=c` overrides; ConfigError lists every mistake.

    >>> load_config("quickstart", ["reduction.name=ring"]).config.reduction.name
    'ring'
    """
    path = find_config(name)
    return load_text(read_text(path), str(path), overrides)


def load_text(text: str, source: str, overrides: Iterable[str] = (), *, trusted: bool = True) -> Loaded:
    """The config in a text, which messages call `source`; otherwise like `load_config`.

    A user's own code is looked for beside the source if it is `trusted`, and in the folder in which the user is.

    >>> text = find_config("quickstart").read_text()
    >>> load_text(text, "changed.yaml", ["seed=3"]).config.seed
    3
    """
    document = read_document(text, source)
    for override in overrides:
        _override(document, override)
    _multiply_batch(document)
    config = validate(document, Config)
    # ranks may start in another folder, but paths are relative to the folder in which the user typed the command
    data = _found(config.data, document, "data", trusted=trusted)
    data = data.model_copy(update={"root": _absolute(data.root)})
    model = _found(config.model, document, "model", trusted=trusted)
    model = model.model_copy(update={"weights": _absolute(model.weights)})
    reduction = config.reduction.model_copy(update={"profile": _absolute(config.reduction.profile)})
    strategy = config.strategy
    if strategy.is_file:
        strategy = strategy.model_copy(update={"name": _absolute(strategy.name)})
    elif strategy.profile and is_file(user_path(strategy.profile)):
        strategy = strategy.model_copy(
            update={"name": AUTO_STRATEGY, "parameters": {"profile": _absolute(strategy.profile)}}
        )
    config = config.model_copy(update={"model": model, "data": data, "reduction": reduction, "strategy": strategy})
    return Loaded(config, source, document.positions)


def _found(section: OwnSection, document: Document, key: str, *, trusted: bool) -> OwnSection:
    """The section with the place of the user's own code, if it names some; ConfigError if that is not found."""
    if section.own is None:
        return section
    beside: list[Path] = [user_path(document.source).absolute().parent] if trusted else []
    folders = [user_path(section.folder)] if section.folder else [*beside, Path.cwd()]
    try:
        own = find_own(str(section.own), folders, section.arguments or ())
    except UserError as error:
        path, text, source = (key, "name"), str(error), Path(section.own.source)
        copies = [user_path(document.source).parent / name for name in (source.name, f"{key}-{source.name}")]
        if source.is_absolute() and not is_file(source) and (copy := next(filter(is_file, copies), None)):
            text += f"; {copy} is what it was when the run began: put it back there"
        raise ConfigError([Mistake(document.position(path), path, text)]) from None
    return section.model_copy(update={"name": str(own), "folder": str(own.folder) if own.folder else None})


def _multiply_batch(document: Document) -> None:
    """Compute the global batch if the batch is given per rank; non-numbers are left to the schema's check."""
    batch, cluster = document.data.get("batch"), document.data.get("cluster") or {}
    if not isinstance(batch, dict) or not isinstance(cluster, dict) or "global_size" in batch:
        return
    counts = [batch.get("per_rank"), cluster.get("nodes", 1), cluster.get("ranks_per_node", 1)]
    if all(isinstance(count, int) and abs(count) <= MOST_IMAGES for count in counts):
        batch["global_size"] = math.prod(counts)
        document.positions["batch", "global_size"] = Position("per_rank times the ranks")


def with_strategy(config: Config, strategy: str, source: str = "--strategies") -> Config:
    """The config with another strategy; ConfigError, which names the `source`, if that does not fit the rest of it."""
    data = {**config.model_dump(mode="json"), "strategy": {"name": strategy}}
    return validate(Document(source, data), Config)


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(user_path(path).absolute())


def _override(document: Document, text: str) -> None:
    """Apply one `--set a.b=c` to the document's data."""
    key, equals, value = text.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    position = Position(f"--set {text}")
    if not equals or not all(path) or len(path) > _MOST_LEVELS:
        document.mistakes.append(
            Mistake(position, (), "expected section.key=value, for instance --set batch.global_size=256")
        )
        return
    section: Any = document.data
    for depth, part in enumerate(path[:-1], 1):
        if isinstance(section, dict) and part not in section:
            document.positions[path[:depth]] = position
        section = section.setdefault(part, {}) if isinstance(section, dict) else None
    if not isinstance(section, dict):
        document.mistakes.append(Mistake(position, path, "has no keys below it"))
        return
    try:
        section[path[-1]] = read_scalar(value)
    except yaml.YAMLError:
        document.mistakes.append(Mistake(position, path, f"not a YAML value (got {value!r})"))
        return
    document.positions[path] = position


def _flow(value: Any) -> str:
    """A value as it is written after `key:`; floats read back as floats."""
    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(plain, default_flow_style=True, width=10**6).strip()
    return text.removesuffix("...").strip()
