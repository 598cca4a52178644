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

from command import ForkedCommand, name_of_ranks

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
    """A running `firetrain launch` of squeezenet-digits, or of a resumed run; it and its ranks are forked (`ForkedCommand`)."""

    process: ForkedCommand | subprocess.Popen[str]

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        config = [] if "--resume" in arguments else ["squeezenet-digits"]
        self.process = self._start(["launch", *config, *arguments])

    def _start(self, arguments: list[str]) -> ForkedCommand | subprocess.Popen[str]:
        return ForkedCommand(arguments, self.folder, merged=True)

    @property
    def run(self) -> Path:
        return next(self.folder.glob("results/*/run.json")).parent

    def ranks(self) -> dict[int, int]:
        """The process ID of each rank; what it has started itself, with its variables, came later."""
        found: dict[int, int] = {}
        for pid in sorted(int(entry.name) for entry in Path("/proc").glob("[0-9]*")):
            if (rank := self._rank(Path("/proc", str(pid)))) is not None:
                found.setdefault(rank, pid)
        return dict(sorted(found.items()))

    def _rank(self, process: Path) -> int | None:
        """The rank that a process is; None if it is none of this launch, or has ended."""
        with suppress(OSError):
            if (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return None
            name = (process / "comm").read_text().strip()
            if name.startswith(name_of_ranks(self.process.pid)):
                return int(name.rpartition(".")[2])
            variables = dict(word.partition(b"=")[::2] for word in (process / "environ").read_bytes().split(b"\0"))
            if variables.get(b"FIRETRAIN_RENDEZVOUS", b"").startswith(str(self.folder).encode()):
                return int(variables[b"FIRETRAIN_RANK"])
        return None

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
        for pid in self.ranks().values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


class RealLaunch(Launch):
    """As a user starts it: in a new process of Python, which starts the ranks in others."""

    def _start(self, arguments: list[str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "firetrain", *arguments]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
