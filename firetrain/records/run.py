"""A run is a directory: what was asked, what happened, what came of it. Everything is told from there."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from firetrain.config import Config, Loaded, load_text
from firetrain.errors import CannotCreate, UserError

# of what a run's directory holds; a reader refuses a newer one
VERSION = 1
RUNNING, COMPLETED, FAILED, CANCELLED = "running", "completed", "failed", "cancelled"
# submitted and not yet begun; saved and ended by request, to be gone on with
SUBMITTED, STOPPED = "submitted", "stopped"


@dataclass(frozen=True)
class Run:
    """The directory of one run. Files: config.yaml, run.json, metrics.jsonl, summary.json, attempt-N/, checkpoints/."""

    path: Path

    @classmethod
    def create(cls, results: Path, loaded: Loaded, created: datetime, facts: Mapping[str, Any]) -> Run:
        """A new directory below `results`, `new_name`d, for an attempt that begins now.

        CannotCreate if the place is not writable.
        """
        run = cls.prepare(results / cls.new_name(loaded, created), loaded, created, {"state": RUNNING, **facts})
        run.logs.mkdir(parents=True)
        return run

    @staticmethod
    def new_name(loaded: Loaded, created: datetime) -> str:
        """After the config and the date, with eight random digits."""
        return f"{loaded.config.name}-{created.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"

    @classmethod
    def prepare(cls, path: Path, loaded: Loaded, created: datetime, facts: Mapping[str, Any]) -> Run:
        """The directory `path` for attempts that will begin later; CannotCreate if the place is not writable."""
        run = cls(path.absolute())
        try:
            path.mkdir(parents=True)
            run.config_path.write_text(loaded.annotated())
        except OSError as error:
            raise CannotCreate(f"{path}: cannot create the run's directory: {error.strerror or error}") from None
        resolved = loaded.config.model_dump(mode="json")
        run.write(
            "run.json",
            {"version": VERSION, "name": path.name, "created": created.isoformat(), "config": resolved, **facts},
        )
        return run

    @classmethod
    def open(cls, path: Path) -> Run:
        """An existing run; UserError if `path` is none."""
        if not (path / "run.json").is_file():
            raise UserError(f"{path} is not a run's directory (no run.json in it)")
        return cls(path.absolute())

    @property
    def name(self) -> str:
        """The directory's name."""
        return self.path.name

    @property
    def attempts(self) -> int:
        """How many times the run was started; at least 1."""
        numbers = [int(path.name[8:]) for path in self.path.glob("attempt-*") if path.name[8:].isdecimal()]
        return max(numbers, default=0) + 1

    @property
    def attempt(self) -> Path:
        """Where the ranks of the newest attempt write."""
        return self.path / f"attempt-{self.attempts - 1}"

    @property
    def stop_mark(self) -> Path:
        """A file that asks the ranks to save and end."""
        return self.path / "STOP"

    @property
    def logs(self) -> Path:
        """One file per rank."""
        return self.attempt / "logs"

    @property
    def config_path(self) -> Path:
        """The config as it was resolved, each value with its origin."""
        return self.path / "config.yaml"

    def log(self, rank: int) -> Path:
        """The output of a rank."""
        return self.logs / f"rank-{rank:04d}.log"

    def config(self) -> Config:
        """The config of the run; UserError if it cannot be read."""
        try:
            text = self.config_path.read_text()
        except OSError as error:
            raise UserError(f"cannot read {self.config_path}: {error.strerror}") from None
        return load_text(text, str(self.config_path)).config

    def facts(self) -> dict[str, Any]:
        """run.json: state, dates, world, code and machine."""
        return self._read("run.json")

    def summary(self) -> dict[str, Any]:
        """summary.json, empty while there is none."""
        return self._read("summary.json")

    def update(self, **facts: Any) -> None:
        """Change some of run.json's facts."""
        self.write("run.json", {**self.facts(), **facts})

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Replace a JSON file as a whole: a reader sees the old one or the new one."""
        draft = self.path / f"{name}.draft"
        draft.write_text(json.dumps(content, indent=2) + "\n")
        draft.replace(self.path / name)

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl, after one that a dying attempt may have left half written."""
        with (self.path / "metrics.jsonl").open("ab+") as file:
            if file.tell() and (file.seek(-1, 2), file.read(1))[1] != b"\n":
                file.write(b"\n")
            file.write(json.dumps(line).encode() + b"\n")

    def metrics(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, of one kind or all, in the order of steps.

        What an attempt did after the checkpoint from which the next one went on is left out: it was done again.
        """
        rows: list[dict[str, Any]] = []
        for row in self.lines({kind, "attempt"} if kind else ()):
            if row["kind"] == "attempt":
                rows = [before for before in rows if before["step"] <= row["step"]]
            rows.append(row)
        return [row for row in rows if kind in (None, row["kind"])]

    def lines(self, kinds: Collection[str] = ()) -> Iterator[dict[str, Any]]:
        """All lines of metrics.jsonl, or those of some kinds; one half written by a dying run is left out."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return
        # a line begins with its kind: those of other kinds, most of a long run's, are not parsed
        beginnings = tuple(f'{{"kind": "{kind}"'.encode() for kind in kinds)
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n") and (not kinds or line.startswith(beginnings)):
                    with suppress(ValueError):  # the half of a line, and the next attempt's first
                        yield from_json(line)

    def _read(self, name: str) -> dict[str, Any]:
        path = self.path / name
        if not path.exists():
            return {}
        try:
            content: dict[str, Any] = json.loads(path.read_text())
        except ValueError as error:
            raise UserError(f"{path}: not JSON: {error}") from None
        return content
