"""Runs of a command of the user's own, which have no config: their record, and what shows that they advance."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from firetrain.errors import CannotCreate, CannotWrite
from firetrain.records.run import COMPLETED, VERSION, Run

# when a job that was stopped is submitted again: if there is a newer checkpoint, in any case, or never
PROGRESS, ALWAYS, NEVER = "progress", "always", "never"


def prepare(path: Path, command: Sequence[str], created: datetime, facts: Mapping[str, Any]) -> Run:
    """Create the directory of a run for attempts that begin later; CannotCreate if its parent is not writable."""
    run = Run(path.absolute())
    described = {
        "version": VERSION,
        "name": path.name,
        "created": created.isoformat(),
        "command": list(command),
        **facts,
    }
    try:
        run.path.mkdir(parents=True)
        (run.path / "checkpoints").mkdir()
        run.write("run.json", described)
    except (OSError, CannotWrite) as error:
        shutil.rmtree(run.path, ignore_errors=True)
        reason = getattr(error, "strerror", None) or error
        raise CannotCreate(f"{path}: cannot create the run's directory: {reason}") from None
    return run


def command_of(run: Run) -> list[str] | None:
    """The command of a run; None if the run trains a config."""
    found = run.facts().get("command")
    return [str(word) for word in found] if isinstance(found, list) else None


def script_of(command: Sequence[str]) -> str | None:
    """The script that a command runs, by its ending; None if there is none."""
    return next((word for word in command if word.endswith((".py", ".sh"))), None)


def digest_of_script(run: Run) -> str | None:
    """The SHA-256 of the script that a run's command runs, as hexadecimal digits; None if it cannot be read."""
    script = script_of(command_of(run) or [])
    try:
        return sha256((Path(run.facts().get("folder", ".")) / script).read_bytes()).hexdigest() if script else None
    except OSError:
        return None


def script_has_changed(run: Run) -> bool:
    """Whether a complete run had another script than the one that is there now."""
    before, now = run.facts().get("script"), digest_of_script(run)
    return run.state == COMPLETED and None not in (before, now) and before != now


def complete(run: Run, ended: datetime, elapsed_s: float) -> None:
    """Record that all ranks have ended well."""
    run.write("summary.json", {"state": COMPLETED, "elapsed_s": elapsed_s, "attempts": run.attempts})
    run.update(state=COMPLETED, ended=ended.isoformat(), reason="")


def has_advanced(run: Run) -> bool:
    """Whether a file in the run's folder `checkpoints` is newer than the start of its newest attempt."""
    began_s = (run.attempt / "logs").stat().st_ctime
    return any(path.stat().st_mtime > began_s for path in (run.path / "checkpoints").rglob("*") if path.is_file())
