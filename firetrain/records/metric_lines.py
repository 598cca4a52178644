"""The lines of metrics.jsonl, in which a run records its steps, evaluations and attempts."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from firetrain.config.files import refuse_irregular
from firetrain.errors import UserError

_TYPES = frozenset({str, int, float, bool, type(None)})


def metric_lines(path: Path, kinds: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """All lines of a file, or those of some kinds, without partial lines of killed attempts; none if there is no file.

    UserError, which names the line, if it has lines that no attempt writes.
    """
    if not path.exists():
        return
    refuse_irregular(path)
    # a line begins with its kind, so lines of other kinds (most lines of a long run) need not be parsed
    beginnings = tuple(f'{{"kind": "{kind}"'.encode() for kind in kinds)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n") and (not kinds or line.startswith(beginnings) or not line.startswith(b"{")):
                try:
                    row = from_json(line)
                except ValueError:  # a partial line followed by the next attempt's first line
                    continue
                if not _is_row(row):
                    text = line[:80].rstrip().decode(errors="replace")
                    raise UserError(f"{path}:{number}: damaged, this is no line of metrics: {text!r}; remove the line")
                yield row


def _is_row(row: Any) -> bool:
    """Whether the row is a valid line of metrics: a kind, a step, and numbers; those that are no durations may be null."""
    if not isinstance(row, dict) or not isinstance(row.get("kind"), str) or not isinstance(row.get("step"), int):
        return False
    types = [*map(type, row.values())]  # without a loop in Python: reports of many runs read some ten thousand rows
    if types.count(str) != 1 or not _TYPES.issuperset(types):
        return False
    return type(None) not in types or not any(key.endswith("_s") for key, value in row.items() if value is None)
