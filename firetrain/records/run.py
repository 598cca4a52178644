"""A run is a directory: what was asked, what happened, what came of it. Everything is told from there."""

from __future__ import annotations

import json
import math
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from firetrain.config import Config, Loaded, load_text
from firetrain.config.files import is_file, read_text
from firetrain.errors import CannotCreate, CannotWrite, UserError
from firetrain.records.file import cannot_write, write_whole

# of what a run's directory holds; a reader refuses a newer one
VERSION = 1
RUNNING, COMPLETED, FAILED, CANCELLED = "running", "completed", "failed", "cancelled"
# submitted and not yet begun; saved and ended by request, to be gone on with
SUBMITTED, STOPPED = "submitted", "stopped"
# what readers rely on, as far as it is there
_NUMBER = int | float
_FACTS = {"name": str, "created": str, "state": str, "reason": str, "site": str, "arm": str, "reduction": str, "machine": dict,
          "config": dict, "asked": dict, "jobs": list, "hosts": list, "warnings": list, "ranks": int,
          "price_per_node_hour": _NUMBER}  # fmt: skip
_SUMMARY = {"state": str, "reached": bool, "reduction": dict, "attempts": int} | dict.fromkeys(
    ("top1", "top5", "epochs", "steps", "images", "world_size", "nodes", "time_to_accuracy_s", "epochs_to_target", "elapsed_s",
     "train_s", "queue_s", "startup_s", "opening_s", "evaluation_s", "checkpoint_s", "restart_s", "lost_s", "data_s", "compute_s",
     "exposed_communication_s", "images_per_s", "bad_images"), _NUMBER,
)  # fmt: skip
_NULLABLE = ("time_to_accuracy_s", "epochs_to_target")
# set by who starts an attempt: when it began, in seconds since 1970
ATTEMPT_BEGAN = "FIRETRAIN_ATTEMPT_BEGAN"
_RESERVE, _RESERVE_BYTES = ".reserve", 64 << 10


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
        run.begin_attempt()
        return run

    @staticmethod
    def new_name(loaded: Loaded, created: datetime) -> str:
        """After the config and the date, with eight random digits."""
        return f"{loaded.config.name}-{created.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"

    @classmethod
    def prepare(cls, path: Path, loaded: Loaded, created: datetime, facts: Mapping[str, Any]) -> Run:
        """The directory `path` for attempts that will begin later; CannotCreate if the place is not writable."""
        run = cls(path.absolute())
        resolved = loaded.config.model_dump(mode="json")
        described = {"version": VERSION, "name": path.name, "created": created.isoformat(), "config": resolved, **facts}
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise CannotCreate(f"{path}: cannot create the run's directory: {error.strerror or error}") from None
        try:
            write_whole(run.config_path, loaded.annotated())
            run.write("run.json", described)
        except CannotWrite as error:
            shutil.rmtree(path, ignore_errors=True)  # half a run is none
            raise CannotCreate(f"{path}: cannot create the run's directory: {error}") from None
        return run

    @classmethod
    def open(cls, path: Path) -> Run:
        """An existing run; UserError if `path` is none."""
        if not is_file(path / "run.json"):
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
    def cancel_mark(self) -> Path:
        """A file that says that a job is not to be put back into the queue."""
        return self.path / "CANCEL"

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
        return self.loaded().config

    def loaded(self) -> Loaded:
        """The same with where each value came from."""
        return load_text(read_text(self.config_path), str(self.config_path))

    def facts(self) -> dict[str, Any]:
        """run.json: state, dates, world, code and machine. UserError if it is damaged."""
        return self._read("run.json", _FACTS)

    def summary(self) -> dict[str, Any]:
        """summary.json, empty while there is none. UserError if it is damaged."""
        return self._read("summary.json", _SUMMARY)

    def update(self, **facts: Any) -> None:
        """Change some of run.json's facts."""
        self.write("run.json", {**self.facts(), **facts})

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Replace a JSON file as a whole: a reader sees the old one or the new one. CannotWrite if that fails."""
        write_whole(self.path / name, json.dumps(content, indent=2) + "\n")

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl, after one that a dying attempt may have left half written. CannotWrite if that fails."""
        path = self.path / "metrics.jsonl"
        with cannot_write(path), path.open("ab+") as file:
            if file.tell() and (file.seek(-1, 2), file.read(1))[1] != b"\n":
                file.write(b"\n")
            file.write(json.dumps(line).encode() + b"\n")

    def reserve(self) -> None:
        """Keep some room on the disk, with which a run can still say that there is no more. CannotWrite if there is none."""
        if not (self.path / _RESERVE).exists():
            write_whole(self.path / _RESERVE, secrets.token_bytes(_RESERVE_BYTES))  # which no file system can compress

    def release(self) -> None:
        """Give that room back."""
        with suppress(OSError):
            (self.path / _RESERVE).unlink(missing_ok=True)

    def begin_attempt(self) -> Path:
        """Make the folder of the next attempt, in which ranks write, and forget that the last one was asked to stop.

        CannotCreate if the place is not writable.
        """
        for mark in (self.stop_mark, self.cancel_mark):
            mark.unlink(missing_ok=True)
        attempt = self.path / f"attempt-{self.attempts if self.attempt.exists() else 0}"
        try:
            (attempt / "logs").mkdir(parents=True)
        except OSError as error:
            raise CannotCreate(f"{attempt}: cannot be created: {error.strerror or error}") from None
        return attempt

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
                        row = from_json(line)
                        if not _is_row(row):
                            raise UserError(f"{path}: damaged, a line is {line[:80].decode(errors='replace')!r}")
                        yield row

    def _read(self, name: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
        path = self.path / name
        if not path.exists():
            return {}
        try:
            content: dict[str, Any] = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: damaged, not JSON: {error}") from None
        if not isinstance(content, dict):
            raise UserError(f"{path}: damaged, not a JSON object")
        for key in content.keys() & kinds.keys():
            value = content[key]
            absent = value is None and key in _NULLABLE
            if not absent and (
                not isinstance(value, kinds[key]) or (isinstance(value, float) and not math.isfinite(value))
            ):
                raise UserError(f"{path}: damaged, {key} is {content[key]!r}")
        return content


def _is_row(row: Any) -> bool:
    """Whether it is a line of metrics: a kind, a step, and numbers."""
    if not isinstance(row, dict) or not isinstance(row.get("kind"), str) or not isinstance(row.get("step"), int):
        return False
    return all(value is None or isinstance(value, _NUMBER) for key, value in row.items() if key != "kind")
