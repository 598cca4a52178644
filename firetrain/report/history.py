"""Read and check recorded runs, for all tables and plots."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from firetrain.config import Config, ConfigError
from firetrain.config.files import exists, is_file, is_folder
from firetrain.errors import UserError
from firetrain.records import Run
from firetrain.records.lock import is_interrupted
from firetrain.records.user_command import command_of

Row = dict[str, Any]


@dataclass(frozen=True)
class History:
    """The facts, config, evaluations (in order of steps) and summary of a run; the summary is empty before its end.

    `evaluations` exclude those that a later attempt repeated, because it resumed from an earlier checkpoint.
    """

    run: Run
    facts: dict[str, Any]
    config: Config
    evaluations: Sequence[Row]
    summary: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of the run's directory."""
        return self.run.name

    @property
    def state(self) -> str:
        """The state: completed, running, failed, ...; interrupted if the launcher was killed."""
        return "interrupted" if is_interrupted(self.run, self.facts) else str(self.facts["state"])

    @property
    def ranks(self) -> int:
        """The number of ranks of the run."""
        return int(self.summary.get("world_size") or self.facts["ranks"])

    @cached_property
    def steps(self) -> list[Row]:
        """The logged steps, read on first use."""
        return self.run.metrics("step")

    @property
    def first_step(self) -> Row | None:
        """The first logged step, without reading the others."""
        return next(self.run.lines({"step"}), None)

    @cached_property
    def hit(self) -> Row | None:
        """The first evaluation that met the target, if any did."""
        target = self.config.target.top1
        return next((row for row in self.evaluations if target is not None and row["top1"] >= target), None)


def read(run: Run) -> History:
    """Read a run; UserError with the reason if it is damaged, incomplete, unreadable, or of a newer firetrain."""
    try:
        facts = run.facts()
        if not facts:
            raise UserError("it has no run.json")
        config = Config.model_validate(facts["config"], strict=False) if "config" in facts else run.config()
        history = History(run, facts, config, run.metrics("evaluation"), run.summary())
        _check(history)
    except ConfigError as error:
        raise UserError(f"its config is not valid: {error.mistakes[0]}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, ("config", *first["loc"])))
        raise UserError(f"{run.path / 'run.json'}: damaged, {key}: {first['msg']}") from None
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}") from None
    except (KeyError, TypeError, ValueError) as error:
        text = f"{error} is missing" if isinstance(error, KeyError) else str(error).partition("\n")[0]
        raise UserError(f"damaged: {text}") from None
    return history


def read_all(runs: Iterable[Run]) -> tuple[list[History], list[str]]:
    """The readable histories by date, and for each unreadable run a line with its path and the reason."""
    histories, left_out = [], []
    for run in runs:
        try:
            histories.append(read(run))
        except UserError as error:
            left_out.append(f"{run.path}: {error}")
    return sorted(histories, key=lambda history: str(history.facts["created"])), left_out


def find(paths: Sequence[str], results: Path, closed: list[str] | None = None) -> list[Run]:
    """The runs of these directories, folders of runs, or names in `results`; without any, all in `results`.

    `closed`: gets a line for each folder that this user may not read. UserError if there are no runs, or if a path is none of
    these.
    """
    if not paths:
        folders = _folders_in(results)
        for folder in folders:
            list(_below(folder, closed, deep=False))
        runs = _runs_in(folders)
        if not runs:
            raise UserError(
                "\n".join(closed or ())
                or "no runs yet: start one with firetrain launch quickstart, or give their folder with --results"
            )
        return runs
    found: dict[Path, Run] = {}
    for path in paths:
        folder = next((folder for folder in (Path(path), results / path) if is_folder(folder)), Path(path))
        one = is_file(folder / "run.json") and not Run(folder).is_allocation
        runs = [Run(folder.absolute())] if one else _runs_in(_below(folder, closed))
        if not runs:
            if closed and is_folder(folder):
                raise UserError("\n".join(closed))
            raise UserError(f"{path} is not a run's directory or a folder of runs (no run.json in it)")
        found.update({run.path: run for run in runs})
    return list(found.values())


def _folders_in(folder: Path) -> list[Path]:
    """The folders in a folder; none if it cannot be read."""
    _, names, _ = next(os.walk(folder), ("", [], []))
    return [folder / name for name in names]


def _below(folder: Path, closed: list[str] | None, *, deep: bool = True) -> Iterator[Path]:
    """A folder, and unless `deep` is False those in it at any depth, but not in a run. `closed`: see `find`."""

    def note(error: OSError) -> None:
        if closed is not None and isinstance(error, PermissionError):
            closed.append(f"{Path(error.filename).absolute()}: cannot be read: {error.strerror}")

    for path, names, _ in os.walk(folder, onerror=note):
        if not deep or (exists(Path(path, "run.json")) and not Run(Path(path)).is_allocation):
            names.clear()
        yield Path(path)


def _runs_in(folders: Iterable[Path]) -> list[Run]:
    """The runs among some folders, of which some may be deleted meanwhile; an allocation of a comparison is not a run."""
    runs = (Run(folder.absolute()) for folder in sorted(folders) if exists(folder / "run.json"))
    return [run for run in runs if not (run.is_allocation or _is_of_a_command(run))]


def _is_of_a_command(run: Run) -> bool:
    """Whether the run is one of a command, of which there is nothing to report; damaged runs are named later."""
    with suppress(UserError):
        return command_of(run) is not None
    return False


def _check(history: History) -> None:
    """KeyError, TypeError or ValueError if a value that every report needs is missing or invalid."""
    for key in ("name", "created", "state"):
        if not isinstance(history.facts[key], str):
            raise TypeError(f"run.json: {key} is {history.facts[key]!r}")
    _ = history.ranks
    for row in history.evaluations:
        for key in ("epoch", "top1", "elapsed_s", "train_s", "images"):
            if not isinstance(row[key], int | float) or (key == "images" and row[key] < 1):
                raise TypeError(f"metrics.jsonl: {key} is {row[key]!r}")
    if history.summary and not isinstance(history.summary["epochs"], int):
        raise TypeError(f"summary.json: epochs is {history.summary['epochs']!r}")
