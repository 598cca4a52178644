"""The command as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from ranks import processes

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def run_command(arguments: tuple[str, ...], cwd: Path, limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run `firetrain ARGUMENTS` in a process of its own, which is forked from one that has loaded torch.

    To start Python for each of some hundred commands took a fifth of the time of all tests.
    """
    with TemporaryDirectory() as name:
        out, err = Path(name) / "out", Path(name) / "err"
        process = processes.Process(target=_command, args=(arguments, str(cwd), dict(os.environ), str(out), str(err)))
        process.start()
        process.join(limit_s)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(arguments, limit_s)
        return subprocess.CompletedProcess(arguments, process.exitcode, out.read_text(), err.read_text())


def _command(arguments: tuple[str, ...], cwd: str, environment: dict[str, str], out: str, err: str) -> None:
    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["firetrain", *arguments]
    from firetrain.__main__ import main

    main()
