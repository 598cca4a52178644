"""Commands as users run them, without the time that Python and torch take to start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import IO, Any

from ranks import processes

Command = Callable[..., "subprocess.CompletedProcess[str]"]


class ForkedCommand:
    """`firetrain ARGUMENTS` in a process that is forked from one that has loaded torch, with methods of `subprocess.Popen`.

    Starting Python took two thirds of the time of such tests. The ranks that the command starts are forked from it in turn,
    unless they have another PYTHONPATH. How commands and ranks start is not tested this way, but by tests/launch/test_local.py,
    on the cluster, and with the installed package; there only, too, may ranks differ in the order of sets of strings. `merged`:
    stdout gets stderr, too.
    """

    def __init__(self, arguments: Sequence[str], cwd: Path, *, merged: bool = False) -> None:
        self._folder = TemporaryDirectory()
        self._out = Path(self._folder.name) / "out"
        self._err = self._out if merged else Path(self._folder.name) / "err"
        places = str(cwd), str(self._out), str(self._err)
        self._process = processes.Process(target=_command, args=(arguments, dict(os.environ), *places))
        self._process.start()

    @property
    def pid(self) -> int:
        """Its process ID."""
        return self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        """The exit code, or minus the number of the signal that killed it; None if it is running."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """As `returncode`."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; TimeoutExpired with what it has printed after `timeout` seconds."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("firetrain", timeout or 0.0, *map(str.encode, self._printed()))
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end; what it has printed on stdout and on stderr."""
        self.wait(timeout)
        return self._printed()

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):  # it may end meanwhile
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def _printed(self) -> tuple[str, str]:
        found = [path.read_text() if path.exists() else "" for path in (self._out, self._err)]
        return found[0], "" if self._err == self._out else found[1]


def run_command(arguments: tuple[str, ...], cwd: Path, limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run `firetrain ARGUMENTS` to its end; TimeoutExpired after the limit."""
    command = ForkedCommand(arguments, cwd)
    try:
        out, err = command.communicate(limit_s)
    finally:
        command.kill()
    return subprocess.CompletedProcess(arguments, command.wait(), out, err)


def _command(arguments: Sequence[str], environment: dict[str, str], cwd: str, out: str, err: str) -> None:
    os.setsid()
    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    if os.environ.get("PYTHONPATH") == environment.get("PYTHONPATH"):
        _fork_ranks()
    _run(arguments, environment)


def _run(arguments: Collection[str], environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["firetrain", *arguments]
    from firetrain.__main__ import main

    main()


def _fork_ranks() -> None:
    from firetrain.launch import attempt

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes] | ForkedRank:
        if command[:3] != [sys.executable, "-m", "firetrain"]:
            return subprocess.Popen(command, **options)
        assert options["cwd"] is None, "only users' own commands are run in another folder"
        return ForkedRank(command[3:], options["stdout"], options["env"], options["pass_fds"])

    attempt.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": start})  # type: ignore[assignment]


def name_of_ranks(launcher: int) -> str:
    """How the names of the processes of forked ranks begin, by the process ID of what has started them; the rank follows."""
    return f"{launcher}."


class ForkedRank:
    """`firetrain ARGUMENTS` in a session of its own, as `subprocess.Popen` starts ranks, but forked from this process."""

    def __init__(
        self, arguments: Collection[str], log: IO[bytes], environment: dict[str, str], kept: Collection[int]
    ) -> None:
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        seen, done = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _become_rank(arguments, log, environment, kept)
        os.close(done)
        os.read(seen, 1)  # until it has a session and signals of its own, and has closed what it does not keep
        os.close(seen)

    def poll(self) -> int | None:
        """The exit code, or minus the number of the signal that killed it; None if it is running."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; TimeoutExpired after `timeout` seconds."""
        began_s = time.monotonic()
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() > began_s + timeout:
                raise subprocess.TimeoutExpired("rank", timeout)
            time.sleep(0.01)
        return code


def _become_rank(
    arguments: Collection[str], log: IO[bytes], environment: dict[str, str], kept: Collection[int]
) -> None:
    import torch

    code = 1
    try:
        os.setsid()
        Path("/proc/self/comm").write_text(name_of_ranks(os.getppid()) + environment["FIRETRAIN_RANK"])
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        kept = {0, 1, 2, resource_tracker.getfd(), *kept}
        for file in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if file not in kept:
                with suppress(OSError):  # that of the listing itself
                    os.close(file)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))  # of which torch was told when it was loaded
        _run(arguments, environment)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
