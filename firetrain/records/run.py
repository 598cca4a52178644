"""The directory of a run, with its config, metrics and results; all reports are made from it."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from firetrain.config import Config, Loaded, load_text
from firetrain.config.files import exists, is_folder, read_regular, read_text, refuse_irregular
from firetrain.errors import CannotCreate, CannotWrite, UserError
from firetrain.records.file import cannot_write, write_whole
from firetrain.records.kinds import FACTS, SUMMARY, wrong
from firetrain.records.metric_lines import metric_lines
from firetrain.records.own_code import keep_code
from firetrain.records.run_name import run_name

# version of the directory's files; readers reject a newer one
VERSION = 1
RUNNING, COMPLETED, FAILED, CANCELLED = "running", "completed", "failed", "cancelled"
# SUBMITTED: not started yet. STOPPED: saved on request, can be resumed
SUBMITTED, STOPPED = "submitted", "stopped"
# folder of an allocation's trials
TRIALS = "trials"
# environment variable with the Unix time at which an attempt started; set by the program that starts it
ATTEMPT_BEGAN = "FIRETRAIN_ATTEMPT_BEGAN"
_RESERVE, _RESERVE_BYTES = ".reserve", 64 << 10


@dataclass(frozen=True)
class Run:
    """The directory of a run, with config.yaml, run.json, metrics.jsonl, summary.json, attempt-N/ and checkpoints/.

    >>> from datetime import timezone
    >>> from firetrain.config import load_config
    >>> now = datetime(2026, 1, 2, tzinfo=timezone.utc)
    >>> run = Run.create(Path("results"), load_config("quickstart"), now, {"ranks": 4})
    >>> run.append({"kind": "step", "step": 1, "loss": 2.3})
    >>> Run.open(run.path).metrics("step")
    [{'kind': 'step', 'step': 1, 'loss': 2.3}]
    """

    path: Path

    @classmethod
    def create(cls, results: Path, loaded: Loaded, created: datetime, facts: Mapping[str, Any]) -> Run:
        """Create a directory in `results`, with a name from `new_name`, for an attempt that begins now.

        CannotCreate if `results` is not writable.
        """
        run = cls.prepare(results / cls.new_name(loaded, created), loaded, created, {"state": RUNNING, **facts})
        run.begin_attempt()
        return run

    @staticmethod
    def new_name(loaded: Loaded, created: datetime) -> str:
        """A name that consists of the config's name, the date and eight random hexadecimal digits."""
        return run_name(loaded.config.name, created)

    @classmethod
    def prepare(cls, path: Path, loaded: Loaded, created: datetime, facts: Mapping[str, Any]) -> Run:
        """Create the directory `path` for attempts that begin later; CannotCreate if its parent is not writable."""
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
            keep_code(loaded.config, run.path)
        except CannotWrite as error:
            shutil.rmtree(path, ignore_errors=True)  # an incomplete run is useless
            raise CannotCreate(f"{path}: cannot create the run's directory: {error}") from None
        return run

    @classmethod
    def open(cls, path: Path) -> Run:
        """The run in `path`; UserError if there is none."""
        if not exists(path / "run.json"):
            raise UserError(f"{path} is not a run's directory (no run.json in it)")
        refuse_irregular(path / "run.json")
        return cls(path.absolute())

    @property
    def name(self) -> str:
        """The name of the run, which is that of its directory."""
        return self.path.name

    @property
    def is_allocation(self) -> bool:
        """Whether this is an allocation of a comparison: a folder of trials, which are runs of their own."""
        return is_folder(self.path / TRIALS)

    def trials(self) -> list[Run]:
        """The trials of an allocation, in the order in which they run."""
        return [Run(path) for path in sorted((self.path / TRIALS).iterdir())]

    @property
    def attempts(self) -> int:
        """The number of times that the run was started; at least 1."""
        numbers = [int(path.name[8:]) for path in self.path.glob("attempt-*") if path.name[8:].isdecimal()]
        return max(numbers, default=0) + 1

    @property
    def attempt(self) -> Path:
        """The folder of the newest attempt."""
        return self.path / f"attempt-{self.attempts - 1}"

    @property
    def stop_mark(self) -> Path:
        """The file whose presence asks the ranks to save a checkpoint and end."""
        return self.path / "STOP"

    @property
    def placement(self) -> Path:
        """The placement file that the strategy `auto` has found."""
        return self.path / "placement.yaml"

    def from_here(self) -> Run:
        """The run with a path relative to the current folder, for commands in messages."""
        return Run(Path(os.path.relpath(self.path)))

    @property
    def resume_command(self) -> str:
        """The command that resumes the run."""
        return f"firetrain launch --resume {shlex.quote(str(self.path))}"

    @property
    def cancel_command(self) -> str:
        """The command that ends the run early."""
        return f"firetrain cancel {shlex.quote(str(self.path))}"

    @property
    def cancel_mark(self) -> Path:
        """The file whose presence asks the job not to requeue itself."""
        return self.path / "CANCEL"

    @property
    def logs(self) -> Path:
        """The folder of the ranks' logs."""
        return self.attempt / "logs"

    @property
    def config_path(self) -> Path:
        """The file with the resolved config, in which each value is followed by its origin."""
        return self.path / "config.yaml"

    def log(self, rank: int) -> Path:
        """The file with the output of a rank."""
        return self.logs / f"rank-{rank:04d}.log"

    def config(self) -> Config:
        """The config of the run; UserError if it cannot be read."""
        return self.loaded().config

    def loaded(self) -> Loaded:
        """The config of the run, with the origin of each value; UserError if it has none, or if that cannot be read."""
        if not exists(self.config_path) and "command" in self.facts():
            raise UserError(f"{self.path} is the run of a command, which has no config and no accuracies")
        return load_text(read_text(self.config_path), str(self.config_path))

    def replace_config(self, loaded: Loaded) -> None:
        """Replace the run's config; CannotWrite if that fails."""
        write_whole(self.config_path, loaded.annotated())

    def facts(self) -> dict[str, Any]:
        """The content of run.json: state, dates, world, code and machine. UserError if it is damaged, or of a newer firetrain."""
        facts = self._read("run.json", FACTS)
        if (version := facts.get("version", VERSION)) > VERSION:
            raise UserError(
                f"{self.path / 'run.json'} has version {version}, but this firetrain reads version {VERSION}"
            )
        return facts

    @property
    def state(self) -> str:
        """The state in run.json: submitted, running, completed, failed, stopped, cancelled; or unknown."""
        return str(self.facts().get("state", "unknown"))

    def summary(self) -> dict[str, Any]:
        """The content of summary.json; empty if it does not exist yet. UserError if it is damaged."""
        return self._read("summary.json", SUMMARY)

    def update(self, **facts: Any) -> None:
        """Change or add facts in run.json."""
        self.write("run.json", {**self.facts(), **facts})

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Replace a JSON file; readers see the old content or the new one. CannotWrite if that fails."""
        write_whole(self.path / name, json.dumps(content, indent=2) + "\n")

    def append(self, line: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl, also after a partial last line of a killed attempt. CannotWrite if that fails."""
        path = self.path / "metrics.jsonl"
        with cannot_write(path), path.open("ab+") as file:
            if file.tell() and (file.seek(-1, 2), file.read(1))[1] != b"\n":
                file.write(b"\n")
            file.write(json.dumps(line).encode() + b"\n")

    def reserve(self) -> None:
        """Reserve disk space, so that a full disk can still be recorded. CannotWrite if it is already full."""
        if not (self.path / _RESERVE).exists():
            # the new run.json is written while the old one exists; random bytes, because file systems may compress others
            size_bytes = (self.path / "run.json").stat().st_size + _RESERVE_BYTES
            write_whole(self.path / _RESERVE, secrets.token_bytes(size_bytes))

    def release(self) -> None:
        """Free the reserved space."""
        with suppress(OSError):
            (self.path / _RESERVE).unlink(missing_ok=True)

    def clear_marks(self) -> None:
        """Remove the stop marks of the previous attempt; UserError if one of them is a folder."""
        for mark in (self.stop_mark, self.cancel_mark):
            if is_folder(mark):
                raise UserError(f"{mark} is a folder, not a mark of firetrain: remove it")
            mark.unlink(missing_ok=True)

    def begin_attempt(self) -> Path:
        """Create the folder of the next attempt, and remove the stop marks of the previous one.

        CannotCreate if the run's directory is not writable.
        """
        self.clear_marks()
        attempt = self.path / f"attempt-{self.attempts if self.attempt.exists() else 0}"
        try:
            (attempt / "logs").mkdir(parents=True)
        except OSError as error:
            raise CannotCreate(f"{attempt}: cannot be created: {error.strerror or error}") from None
        return attempt

    def metrics(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, of one kind or all, in the order of steps.

        Lines after the checkpoint from which the next attempt resumed are left out, because those steps were repeated.
        """
        rows: list[dict[str, Any]] = []
        for row in self.lines({kind, "attempt"} if kind else ()):
            if row["kind"] == "attempt":
                rows = [before for before in rows if before["step"] <= row["step"]]
            rows.append(row)
        return [row for row in rows if kind in (None, row["kind"])]

    def lines(self, kinds: Collection[str] = ()) -> Iterator[dict[str, Any]]:
        """All lines of metrics.jsonl, or those of some kinds, as `metric_lines` reads them."""
        return metric_lines(self.path / "metrics.jsonl", kinds)

    def _read(self, name: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
        path = self.path / name
        if not path.exists():
            return {}
        text = read_regular(path)
        try:
            content: dict[str, Any] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: damaged, not JSON: {error}") from None
        if not isinstance(content, dict):
            raise UserError(f"{path}: damaged, not a JSON object")
        if found := wrong(content, kinds):
            raise UserError(f"{path}: damaged, {found}")
        return content
