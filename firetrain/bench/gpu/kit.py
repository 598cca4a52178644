"""Runs each check in its own process with a time limit; the JSON file is complete after each check."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from firetrain.errors import UserError, unknown
from firetrain.provenance import provenance
from firetrain.records.file import write_whole

# The checks in order, with time limits in seconds. A check may also use what earlier checks have left, and the time of checks
# that were not requested. Together with the start and the end of each process they take less than eight minutes.
LIMITS_S = {
    "facts": 40, "links": 15, "lost": 20, "reductions": 65, "gradients": 30, "hook": 10, "strategies": 35, "optimizers": 15,
    "steps": 30, "compile": 45, "kernels": 25, "throughput": 55, "inputs": 40, "ablations": 30,
}  # fmt: skip
# the share of the time left over that is given to a check that uses all it gets, so that later checks have some
_SHARES = {"throughput": 0.4}
_LAST_WORDS = 20


def run_kit(out: Path, names: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run the checks `names` (default: all). Yields the name and the result of each, after adding it to `out`.

    A result contains `seconds`. If the check failed or took too long, it also contains `error`, and everything found before.
    UserError for an unknown name.
    """
    for name in names:
        if name not in LIMITS_S:
            raise UserError(unknown("check", name, LIMITS_S))
    found: dict[str, Any] = {"machine": provenance(), "checks": {}}
    # a place that cannot be written is noticed before minutes pass
    write_whole(out, json.dumps(found, indent=1) + "\n")
    left_s = float(sum(limit_s for name, limit_s in LIMITS_S.items() if names and name not in names))
    asked = list(names or LIMITS_S)
    for name in asked:
        began_s, most_s = time.monotonic(), LIMITS_S[name] + left_s
        limit_s = most_s if name == asked[-1] else LIMITS_S[name] + _SHARES.get(name, 1.0) * left_s
        check = _run(name, limit_s)
        took_s = time.monotonic() - began_s
        check["seconds"], left_s = round(took_s, 1), max(0.0, most_s - took_s)
        found["checks"][name] = check
        write_whole(out, json.dumps(found, indent=1) + "\n")
        yield name, check


def _run(name: str, limit_s: float) -> dict[str, Any]:
    # all processes of a machine have the same monotonic clock
    command = [sys.executable, "-m", "firetrain.bench.gpu.check", name, f"{time.monotonic() + limit_s:.3f}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired as late:
        seen = late.stdout or b""  # bytes, although text was asked for
        return {
            **_last(seen if isinstance(seen, str) else seen.decode()),
            "error": f"took longer than {limit_s:.3g} s",
        }
    found, stderr = _last(done.stdout), "\n".join(done.stderr.splitlines()[-_LAST_WORDS:])
    if stderr:
        found["stderr"] = stderr
    if done.returncode or not done.stdout:
        found["error"] = stderr or f"exit code {done.returncode}"
    return found


def _last(output: str) -> dict[str, Any]:
    """The last complete result that a check printed; libraries print lines of their own between them."""
    for line in reversed(output[: output.rfind("\n") + 1].splitlines()):
        with suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict):
                return found
    return {}
