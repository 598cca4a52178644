"""The last lines of a run's logs."""

from __future__ import annotations

from pathlib import Path

from firetrain.config.files import is_file
from firetrain.records import Run

_LINES, _MOST_BYTES = 12, 1 << 16
# what C++ says of threads that still run when a process ends, as torch's do without destroy_process_group
_THREADS_RAN = "terminate called without an active exception"


class Tail:
    """Follows the log of a rank, across attempts."""

    def __init__(self, run: Run, rank: int) -> None:
        self._run, self._rank = run, rank
        self._path: Path | None = None
        self._place = 0

    def new(self) -> list[str]:
        """Complete lines that were not returned before."""
        lines: list[str] = []
        newest = self._run.log(self._rank)
        if self._path and self._path != newest:
            lines += self._rest()
            lines.append(f"--- {newest.parent.parent.name} ---")
        if self._path != newest:
            self._path, self._place = newest, 0
        return lines + self._rest()

    def _rest(self) -> list[str]:
        if self._path is None or not is_file(self._path):
            return []
        with self._path.open("rb") as file:
            file.seek(self._place)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._place += len(whole)
        return whole.decode(errors="replace").splitlines()


def log_tail(path: Path, lines: int = _LINES) -> list[str]:
    """The last lines of a log, from its last 64 KiB; none if there is no log."""
    if not is_file(path):
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _MOST_BYTES))
        return file.read(_MOST_BYTES).decode(errors="replace").splitlines()[-lines:]


def ended_with_running_threads(path: Path) -> bool:
    """Whether a process ended with threads that still ran, by the last line of its log."""
    return log_tail(path, 1) == [_THREADS_RAN]


def quoted_tail(path: Path) -> str:
    """The last lines of a log, indented below a line that names it; `(nothing)` if there are none.

    Without what C++ says of running threads, which comes after what was wrong.
    """
    kept = log_tail(path, _LINES + 1)
    kept = kept[:-1] if kept[-1:] == [_THREADS_RAN] else kept
    lines = "\n".join(f"  | {line}" for line in kept[-_LINES:]) or "  | (nothing)"
    return f"last lines of {path}:\n{lines}"
