"""One process of a run: connect, train, and end in a way that whoever watches understands."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch

from firetrain.cluster import Identity, SystemClock
from firetrain.config import Loaded
from firetrain.errors import FiretrainError
from firetrain.provenance import provenance
from firetrain.records import COMPLETED, FAILED, RUNNING, STOPPED, Run
from firetrain.reduction.transport import Transport, connect
from firetrain.training.loop import Stopped, Training

_PR_SET_PDEATHSIG = 1


def train_rank(loaded: Loaded, identity: Identity, run_path: Path | None, results: Path) -> Run:
    """Train as one rank of the world that `identity` belongs to; the run's record, on rank 0 complete.

    Under firetrain's launcher and in its batch jobs the run exists already (`run_path`); otherwise rank 0 makes it. Rank 0
    writes down how it ended, as far as it lives to see that.
    """
    if identity.launcher == "firetrain":
        _end_with_parent()
    cluster, reduction = loaded.config.cluster, str(loaded.config.reduction.spec)
    transport = connect(identity, cluster.transport, cluster.timeout_s, [reduction])
    run = Run.open(run_path) if run_path else _shared_run(loaded, transport, results)
    state, reason = COMPLETED, ""
    try:
        hosts = transport.gather_objects(socket.gethostname())
        if identity.is_first:
            run.update(state=RUNNING, hosts=list(dict.fromkeys(hosts)), **_libraries())
        training = Training(loaded.config, transport, run)
        if (
            identity.launcher == "srun"
        ):  # Slurm tells the tasks themselves when time is up or another job wants the nodes
            signal.signal(signal.SIGTERM, lambda number, frame: training.ask_to_stop())
        training.run()
    except Stopped as stop:
        state, reason = STOPPED, str(stop)
    except BaseException as error:
        if identity.is_first:
            _close(run, FAILED, str(error).partition("\n")[0])
        raise
    if identity.is_first:
        _close(run, state, reason)
    training.close()
    transport.barrier()
    transport.close()
    return run


def _libraries() -> dict[str, Any]:
    """Versions of what a rank alone can see."""
    if not torch.cuda.is_available():
        return {}
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "nccl": nccl}


def _close(run: Run, state: str, reason: str) -> None:
    run.update(state=state, ended=SystemClock().date().isoformat(), reason=reason)


def leave(code: int = 0) -> NoReturn:
    """End the process without taking the interpreter down.

    Threads that wait for lost peers would hold it, and a library's thread that lets go of a tensor while the interpreter
    is dismantled ends the process with SIGABRT ("terminate called without an active exception", seen after a clean run).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def fail(error: BaseException, debug: bool) -> NoReturn:
    """Tell what went wrong, and leave."""
    known = isinstance(error, FiretrainError)
    if not known or debug:
        traceback.print_exception(error)
    if known:
        print(f"firetrain: {error}", file=sys.stderr)
    leave(error.exit_code if isinstance(error, FiretrainError) else 1)


def _shared_run(loaded: Loaded, transport: Transport, results: Path) -> Run:
    """Rank 0 makes the run's directory, all get its path."""
    path = ""
    if transport.rank == 0:
        facts = {"world": str(transport.world), "ranks": transport.size, "machine": provenance()}
        path = str(Run.create(results, loaded, SystemClock().date(), facts).path)
    return Run(Path(transport.broadcast_object(path)))


def _end_with_parent() -> None:
    """Linux: be terminated when the launcher is gone, even if it was killed and could not do it itself."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
