"""One rank of a run: it connects, trains, and records how the run ended."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from firetrain.cluster import Identity, SystemClock, World
from firetrain.config import Config, Loaded
from firetrain.config.load import with_strategy
from firetrain.config.names import ParameterServer
from firetrain.config.sections.batch import BatchSection
from firetrain.config.sections.cluster import ClusterSection
from firetrain.config.sections.strategy import DATA_PARALLEL
from firetrain.errors import CannotWrite, UserError
from firetrain.provenance import provenance
from firetrain.records import COMPLETED, FAILED, RUNNING, Run
from firetrain.records.file import write_whole
from firetrain.records.lock import held
from firetrain.strategy.file import fits
from firetrain.training.divergence import Diverged
from firetrain.training.ending import recorded
from firetrain.training.loop import Training
from firetrain.training.server_roles import ServerRoles
from firetrain.training.setup import set_up
from firetrain.training.stop import Stopped
from firetrain.transport.checksum import RanksDiffer
from firetrain.transport.device import backend_of, choose_device, gpu_facts
from firetrain.transport.meeting import Meeting
from firetrain.transport.probe import measure_link
from firetrain.transport.rendezvous import connect, meet
from firetrain.transport.transport import Transport

# finds a placement for a config on a world, and returns it as the text of a placement file
FindPlacement = Callable[[Config, World], str]


def train_rank(loaded: Loaded, identity: Identity, run_path: Path | None, results: Path, search: FindPlacement) -> Run:
    """Train as the rank `identity` of a world; returns the run's record.

    If firetrain's launcher or batch job has already created the run, `run_path` is its directory; otherwise rank 0 creates it.
    Rank 0 records how the run ended, unless it is killed. `search` is called on rank 0 if the strategy is `auto`.
    """
    cluster, reduction = loaded.config.cluster, str(loaded.config.reduction.spec)
    if loaded.config.strategy.servers:
        return _train_served(loaded, loaded.config.strategy.servers, identity, run_path, results)
    transport = connect(identity, cluster.transport, cluster.timeout_s, [reduction])
    run = Run.open(run_path) if run_path else _shared_run(loaded, transport, results)
    with _locked(run, identity):
        _train(run, loaded.config, transport, search)
    transport.barrier()
    transport.close()
    return run


@contextmanager
def _locked(run: Run, identity: Identity) -> Iterator[None]:
    """Context manager: rank 0 holds the run's lock.

    Not under firetrain's launcher, which already holds it, and not under Slurm: jobs are identified by number, and a lost node
    might never release a lock.
    """
    with ExitStack() as stack:
        if identity.is_first and identity.launcher != "firetrain" and "SLURM_JOB_ID" not in os.environ:
            stack.enter_context(held(run))
        yield


def _train_served(
    loaded: Loaded, strategy: ParameterServer, identity: Identity, run_path: Path | None, results: Path
) -> Run:
    """Train with parameter servers. The ranks form no process group, because it would end with the first worker that dies."""
    config, timeout_s = loaded.config, loaded.config.cluster.timeout_s
    if identity.world_size != config.cluster.ranks:
        raise UserError(
            f"cluster: {config.cluster.ranks} ranks are planned, but {identity.world_size} were started: set cluster.nodes and "
            "cluster.ranks_per_node to the number that was started"
        )
    device = choose_device(identity, config.cluster.transport)
    meeting = Meeting(identity, *meet(identity, timeout_s), timeout_s)
    alone = Transport(backend_of(device), Identity(), World.even(1, 1), device, timeout_s)
    if run_path:
        run = Run.open(run_path)
    elif identity.is_first:
        run = _new_run(loaded, World.even(config.cluster.nodes, config.cluster.ranks_per_node), results)
        meeting.tell("run", str(run.path))
    else:
        run = Run(Path(meeting.ask("run")))
    with _locked(run, identity), recorded(run, first=identity.is_first, of_a_trial=False):
        wrong = _wrong_at_begin(run, alone, [socket.gethostname()]) if identity.is_first else ""
        if wrong := meeting.hear(wrong):
            raise CannotWrite(wrong)
        ServerRoles(config, strategy, run, meeting, alone, [run.stop_mark]).train()
    return run


def train_trials(allocation: Run, identity: Identity, search: FindPlacement) -> None:
    """Train the unfinished trials of a comparison's allocation one after another, as the rank `identity` of its world.

    An error that all ranks raise ends only the current trial; an error of some ranks ends the processes. `search`: as for a run.
    """
    cluster = allocation.config().cluster
    trials = allocation.trials()
    reductions = [str(run.config().reduction.spec) for run in trials]
    transport = connect(identity, cluster.transport, cluster.timeout_s, reductions)
    if identity.is_first:
        hosts = {"hosts": list(dict.fromkeys(_hosts(transport))), **gpu_facts(transport.device)}
        allocation.update(state=RUNNING, **hosts)
    else:
        _hosts(transport)
    if transport.size > 1:
        link = measure_link(transport)
        if identity.is_first:
            allocation.update(
                link={"latency_s": link.latency_s, "bytes_per_s": link.bytes_per_s, "overhead_s": link.overhead_s}
            )
    todo = [run.path for run in trials if run.state not in (COMPLETED, FAILED)]
    for path in transport.broadcast_object(todo):
        if transport.broadcast_object(allocation.stop_mark.exists()):
            break
        run = Run(path)
        if identity.is_first and not (path / "metrics.jsonl").exists():
            # the time before this trial is not counted as its start-up
            run.update(created=SystemClock().date().isoformat())
        try:
            _train(run, run.config(), transport, search, allocation.stop_mark)
        except _ALIKE as error:
            print(f"{run.name} failed: {error}", flush=True)
        transport.barrier()
    transport.barrier()
    transport.close()


# errors that all ranks raise together, so that they can continue with the next trial; after others they must be restarted
_ALIKE = (Diverged, RanksDiffer, UserError)


def _train(run: Run, config: Config, transport: Transport, search: FindPlacement, mark: Path | None = None) -> None:
    """Train to the end of the run; rank 0 records how it ended.

    `mark`: for trials of a comparison, a second file whose presence asks the ranks to stop. For these trials LostPeer is not
    recorded here; the launcher records which rank failed.
    """
    # a comparison's trial starts now, not when its job started
    began = SystemClock().date().timestamp() if mark else None
    marks = [path for path in (run.stop_mark, mark) if path]
    with recorded(run, first=transport.rank == 0, of_a_trial=mark is not None):
        _begin(run, transport, _hosts(transport))
        _refuse_another_world(config.batch, config.cluster, transport)
        config = _with_placement(config, run, transport, search)
        if config.strategy.servers:
            meeting = Meeting(
                transport.identity, transport.meeting_host, transport.store, transport.timeout_s, run.name
            )
            ServerRoles(config, config.strategy.servers, run, meeting, _alone(transport), marks, began).train()
            return
        training = set_up(config, transport, run, stop_marks=marks, began=began)
        # Slurm signals the tasks directly when the time limit is reached or another job preempts this one
        if transport.identity.launcher == "srun":
            signal.signal(signal.SIGTERM, lambda number, frame: training.ask_to_stop())
        with _closed_together(training):
            training.run()


@contextmanager
def _closed_together(training: Training) -> Iterator[None]:
    """Context manager: close the training, unless it failed only on some ranks, because the others would wait for these."""
    try:
        yield
    except (Stopped, *_ALIKE):
        training.close()
        raise
    training.close()


def _with_placement(config: Config, run: Run, transport: Transport, search: FindPlacement) -> Config:
    """The config with the placement that the strategy `auto` stands for, which rank 0 writes into the run's folder.

    A resumed run keeps its placement, unless the number of ranks or the reduction has changed. UserError, or CannotWrite, on all
    ranks.
    """
    if config.strategy.profile is None:
        return config
    if transport.size == 1:
        return with_strategy(config, DATA_PARALLEL)
    wrong = False, ""
    if transport.rank == 0:
        try:
            if not (run.placement.exists() and fits(run.placement, config, transport.world)):
                write_whole(run.placement, search(config, transport.world))
        except (UserError, CannotWrite) as error:
            wrong = isinstance(error, CannotWrite), str(error)
    unwritten, text = transport.broadcast_object(wrong)
    if text:
        raise (CannotWrite if unwritten else UserError)(text)
    return with_strategy(config, str(run.placement))


def _begin(run: Run, transport: Transport, hosts: list[str]) -> None:
    """Rank 0 records that the run is running. CannotWrite on all ranks if it cannot."""
    wrong = _wrong_at_begin(run, transport, hosts) if transport.rank == 0 else ""
    if wrong := transport.broadcast_object(wrong):
        raise CannotWrite(wrong)


def _wrong_at_begin(run: Run, transport: Transport, hosts: list[str]) -> str:
    """Why it cannot be recorded that the run is running; empty if it has been."""
    try:
        run.reserve()
        run.update(state=RUNNING, hosts=list(dict.fromkeys(hosts)), **gpu_facts(transport.device))
    except CannotWrite as error:
        return f"{error}; nothing was trained. Free some space, then resume with {run.resume_command}"
    return ""


def _refuse_another_world(batch: BatchSection, cluster: ClusterSection, transport: Transport) -> None:
    """UserError if `batch.per_rank` was resolved for a different number of ranks."""
    planned = cluster.ranks
    if batch.per_rank and planned != transport.size:
        raise UserError(
            f"batch.per_rank: the batch of {batch.global_size} is for {planned} ranks, but {transport.size} were started: "
            "set cluster.nodes and cluster.ranks_per_node to the number that was started"
        )


def _hosts(transport: Transport) -> list[str]:
    """The host names of all ranks, in rank order. Collective."""
    return [str(host) for host in transport.gather_objects(socket.gethostname())]


def _shared_run(loaded: Loaded, transport: Transport, results: Path) -> Run:
    """Create the run's directory on rank 0; returns the run on all ranks."""
    path = str(_new_run(loaded, transport.world, results).path) if transport.rank == 0 else ""
    return Run(Path(transport.broadcast_object(path)))


def _new_run(loaded: Loaded, world: World, results: Path) -> Run:
    facts = {"world": str(world), "ranks": world.size, "machine": provenance()}
    return Run.create(results, loaded, SystemClock().date(), facts)


def _alone(transport: Transport) -> Transport:
    """The transport of this rank alone, with its device."""
    return Transport(transport.name, Identity(), World.even(1, 1), transport.device, transport.timeout_s)
