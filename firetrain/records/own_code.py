"""Copies of the user's own files in a run's folder, and whether the files have changed since."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from firetrain.config import Config
from firetrain.config.files import is_file, read_regular, user_path
from firetrain.config.sections.strategy import StrategySection
from firetrain.records.file import write_whole

# name of a placement file's copy, because its own name may be that of one of the run's files
_STRATEGY = "strategy.yaml"


def keep_code(config: Config, folder: Path, *, only_strategy: bool = False) -> None:
    """Copy the files that the config names as model, data or strategy into a run's folder."""
    for name, file in _files(config).items():
        if not only_strategy or name == _STRATEGY:
            write_whole(folder / name, read_regular(file))


def changed_code(config: Config, folder: Path, strategy: StrategySection | None) -> Iterator[str]:
    """A note for each of these files that differs from the copy that the run has of its beginning.

    `strategy`: that of the run until now; a placement file is not compared with that of another strategy.
    """
    for name, file in _files(config).items():
        copy = folder / name
        if name == _STRATEGY and config.strategy != strategy:
            continue
        if is_file(copy) and is_file(file) and read_regular(copy) != read_regular(file):
            yield f"note: {file} has changed since the run began; what it was then is in {copy}"


def _files(config: Config) -> dict[str, Path]:
    """The files, by the names of their copies."""
    named = {"model": config.model.own, "data": config.data.own}
    files = {section: Path(own.source) for section, own in named.items() if own and own.is_file}
    alike = len({file.name for file in files.values()}) < len(set(files.values()))
    found = {f"{section}-{file.name}" if alike else file.name: file for section, file in files.items()}
    if config.strategy.is_file:
        found[_STRATEGY] = user_path(config.strategy.name)
    return found
