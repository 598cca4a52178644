"""One process of a run: connect, train, and end in a way that whoever watches understands."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import traceback
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, NoReturn

import torch

from firetrain.cluster import Identity, SystemClock
from firetrain.config import Config, Loaded
from firetrain.errors import CannotWrite, FiretrainError, LostPeer, UserError
from firetrain.provenance import provenance
from firetrain.records import COMPLETED, FAILED, RUNNING, STOPPED, Run
from firetrain.records.lock import held
from firetrain.reduction.checksum import RanksDiffer
from firetrain.reduction.probe import measure_link
from firetrain.reduction.transport import Transport, connect
from firetrain.training.loop import Diverged, Stopped, Training

_PR_SET_PDEATHSIG = 1


def train_rank(loaded: Loaded, identity: Identity, run_path: Path | None, results: Path) -> Run:
    """Train as one rank of the world that `identity` belongs to; the run's record, on rank 0 complete.

    Under firetrain's launcher and in its batch jobs the run exists already (`run_path`); otherwise rank 0 makes it. Rank 0
    writes down how it ended, as far as it lives to see that.
    """
    _heed_parent(identity)
    cluster, reduction = loaded.config.cluster, str(loaded.config.reduction.spec)
    transport = connect(identity, cluster.transport, cluster.timeout_s, [reduction])
    run = Run.open(run_path) if run_path else _shared_run(loaded, transport, results)
    with ExitStack() as stack:
        # firetrain's launcher holds the lock with its ranks; a job is known by its number, and a lost node may keep its locks
        if identity.is_first and identity.launcher != "firetrain" and "SLURM_JOB_ID" not in os.environ:
            stack.enter_context(held(run))
        _train(run, loaded.config, transport)
    transport.barrier()
    transport.close()
    return run


def train_parts(group: Run, identity: Identity) -> None:
    """The unfinished parts of a comparison's group, one after another in the same processes, as one rank of its world.

    What all ranks refuse alike ends a part, and the next one follows; what only some ranks meet ends the processes.
    """
    _heed_parent(identity)
    cluster = group.config().cluster
    parts = [Run(path) for path in sorted((group.path / "parts").iterdir())]
    reductions = [str(run.config().reduction.spec) for run in parts]
    transport = connect(identity, cluster.transport, cluster.timeout_s, reductions)
    if identity.is_first:
        hosts = {"hosts": list(dict.fromkeys(_hosts(transport))), **_libraries()}
        group.update(state=RUNNING, **hosts)
    else:
        _hosts(transport)
    if transport.size > 1:
        link = measure_link(transport)
        if identity.is_first:
            group.update(
                link={"latency_s": link.latency_s, "bytes_per_s": link.bytes_per_s, "overhead_s": link.overhead_s}
            )
    todo = [run.path for run in parts if run.facts()["state"] not in (COMPLETED, FAILED)]
    for path in transport.broadcast_object(todo):
        if transport.broadcast_object(group.stop_mark.exists()):
            break
        run = Run(path)
        if identity.is_first and not (path / "metrics.jsonl").exists():
            run.update(created=SystemClock().date().isoformat())  # what went before it is not its start-up
        try:
            _train(run, run.config(), transport, group.stop_mark)
        except _ALIKE as error:
            print(f"{run.name} failed: {error}", flush=True)
        transport.barrier()
    transport.barrier()
    transport.close()


# what all ranks raise together, so that all can go on with the next part; after anything else they have to be started anew
_ALIKE = (Diverged, RanksDiffer, UserError)


def _train(run: Run, config: Config, transport: Transport, mark: Path | None = None) -> None:
    """To the run's end; rank 0 writes down which it was.

    `mark`: of a comparison's part, a file that asks the ranks to stop, beside the run's own; there LostPeer is left to who
    started the ranks, and sees which of them it was.
    """
    first = transport.rank == 0
    state, reason = COMPLETED, ""
    try:
        hosts = _hosts(transport)
        _begin(run, transport, hosts)
        _refuse_another_world(config, transport)
        # a part begins when it is its turn, whenever its job did
        began = SystemClock().date().timestamp() if mark else None
        marks = [path for path in (run.stop_mark, mark) if path]
        training = Training(config, transport, run, stop_marks=marks, began=began)
        # Slurm tells the tasks themselves when time is up or another job wants the nodes
        if transport.identity.launcher == "srun":
            signal.signal(signal.SIGTERM, lambda number, frame: training.ask_to_stop())
        with closing(training):
            training.run()
    except Stopped as stop:
        state, reason = STOPPED, str(stop)
    except BaseException as error:
        if first and not (mark and isinstance(error, LostPeer)):
            run.release()
            with suppress(CannotWrite):  # then who started the ranks tells it
                _close(run, FAILED, str(error).partition("\n")[0])
        raise
    if first:
        run.release()
        _close(run, state, reason)


def _begin(run: Run, transport: Transport, hosts: list[str]) -> None:
    """Rank 0 writes down that the run is under way. CannotWrite on all ranks if it cannot."""
    wrong = ""
    if transport.rank == 0:
        try:
            run.reserve()
            run.update(state=RUNNING, hosts=list(dict.fromkeys(hosts)), **_libraries())
        except CannotWrite as error:
            wrong = f"{error}; nothing was trained. Make room, then go on with firetrain launch --resume {run.path}"
    if wrong := transport.broadcast_object(wrong):
        raise CannotWrite(wrong)


def _refuse_another_world(config: Config, transport: Transport) -> None:
    """A batch per rank was multiplied by the ranks that the config has."""
    planned = config.cluster.ranks
    if config.batch.per_rank and planned != transport.size:
        raise UserError(
            f"batch.per_rank: the batch of {config.batch.global_size} is for {planned} ranks, and there are {transport.size}: "
            "set cluster.nodes and cluster.ranks_per_node to what is started"
        )


def _hosts(transport: Transport) -> list[str]:
    """Those of all ranks."""
    return [str(host) for host in transport.gather_objects(socket.gethostname())]


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
    with suppress(OSError):  # a full disk takes no last words
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def fail(error: BaseException, debug: bool) -> NoReturn:
    """Tell what went wrong, and leave."""
    known = isinstance(error, FiretrainError)
    with suppress(OSError):
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


def _heed_parent(identity: Identity) -> None:
    """Under firetrain's own launcher, on Linux: end with it, even if it is killed and cannot see to that itself."""
    if identity.launcher != "firetrain":
        return
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
