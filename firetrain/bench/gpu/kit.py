"""Runs each part in its own process with a time limit; the JSON file is complete after each part."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from firetrain.errors import UserError, unknown
from firetrain.provenance import provenance
from firetrain.records.file import write_whole

# the parts in order, and seconds that each may take; together less than eight minutes
LIMITS_S = {
    "facts": 20, "reductions": 60, "gradients": 40, "optimizers": 15, "steps": 35, "compile": 45, "throughput": 120,
    "ablations": 50, "inputs": 30, "links": 30, "kernels": 30,
}  # fmt: skip
_LAST_WORDS = 12


def run_kit(out: Path, names: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run the parts `names` (default: all). Yields the name and the result of each, after adding it to `out`.

    A result contains `seconds`. If the part failed or took too long, it also contains `error`, and everything found before.
    UserError for an unknown name.
    """
    for name in names:
        if name not in LIMITS_S:
            raise UserError(unknown("part", name, LIMITS_S))
    found: dict[str, Any] = {"machine": provenance(), "parts": {}}
    # a place that cannot be written is noticed before minutes pass
    write_whole(out, json.dumps(found, indent=1) + "\n")
    for name in names or LIMITS_S:
        began_s = time.monotonic()
        part = {**_run(name), "seconds": round(time.monotonic() - began_s, 1)}
        found["parts"][name] = part
        write_whole(out, json.dumps(found, indent=1) + "\n")
        yield name, part


def _run(name: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "firetrain.bench.gpu.part", name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMITS_S[name], check=False
        )
    except subprocess.TimeoutExpired as late:
        seen = late.stdout or b""  # bytes, although text was asked for
        return {
            **_last(seen if isinstance(seen, str) else seen.decode()),
            "error": f"took longer than {LIMITS_S[name]} s",
        }
    found = _last(done.stdout)
    if done.returncode or not found:
        told = "\n".join(done.stderr.splitlines()[-_LAST_WORDS:])
        found["error"] = told or f"exit code {done.returncode}"
    return found


def _last(output: str) -> dict[str, Any]:
    """The last complete result that a part printed."""
    lines = output[: output.rfind("\n") + 1].splitlines()
    found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return found
