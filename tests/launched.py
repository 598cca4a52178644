"""Running launches for tests, and the ranks that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

LONG = ("--set", "target.top1=null", "--set", "target.max_epochs=500")


def wait_for(condition: Callable[[], object], what: str, limit_s: float = 90) -> None:
    """Wait until `condition()` is true; AssertionError after the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.05)


def stop(pid: int) -> None:
    """Stop a process, and wait until it has stopped; before that, other signals may come first."""
    os.kill(pid, signal.SIGSTOP)
    status = Path(f"/proc/{pid}/stat")
    wait_for(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", f"process {pid} has stopped")


class Launch:
    """A running `firetrain launch` of squeezenet-digits, or of a resumed run."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        config = [] if "--resume" in arguments else ["squeezenet-digits"]
        command = [sys.executable, "-m", "firetrain", "launch", *config, *arguments]
        self.process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    @property
    def run(self) -> Path:
        return next(self.folder.glob("results/*/run.json")).parent

    def ranks(self) -> dict[int, int]:
        """The process ID of each rank."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "environ").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            variables = dict(word.partition(b"=")[::2] for word in words)
            if variables.get(b"FIRETRAIN_RENDEZVOUS", b"").startswith(str(self.folder).encode()) and state != "Z":
                found[int(entry.name)] = int(variables[b"FIRETRAIN_RANK"])
        return {rank: pid for pid, rank in sorted(found.items(), reverse=True)}

    def wait_until_training(self) -> None:
        wait_for(
            lambda: bool(list(self.folder.glob("results/*/metrics.jsonl"))) or self.process.poll() is not None,
            "a first step",
        )
        assert self.process.poll() is None, self.process.communicate()[0]

    def end(self, limit_s: float = 15) -> tuple[int, str, float]:
        """Wait for the end; returns exit code, output and seconds until the end."""
        started_s = time.monotonic()
        out, _ = self.process.communicate(timeout=limit_s)
        return self.process.returncode, out, time.monotonic() - started_s

    def kill(self) -> None:
        """Kill all processes that are left."""
        for pid in (*self.ranks().values(), self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
