"""Commands as users run them, without the time that Python and torch take to start."""

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

    Starting Python took two thirds of the time of such tests. How a command starts and how its process ends are not tested this
    way, but by the commands of the README, and by `Launch`.
    """
    with TemporaryDirectory() as name:
        out, err = Path(name) / "out", Path(name) / "err"
        process = processes.Process(target=_command, args=(arguments, str(cwd), dict(os.environ), str(out), str(err)))
        process.start()
        try:
            process.join(limit_s)
            if process.exitcode is None:
                raise subprocess.TimeoutExpired(arguments, limit_s, out.read_bytes(), err.read_bytes())
        finally:
            process.kill()
            process.join()
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
