"""Starts Horovod in ranks that are already connected."""

from __future__ import annotations

import os
from typing import Any

from firetrain.config.names import HOROVOD_HINT
from firetrain.errors import FiretrainError, UserError
from firetrain.transport.lost_peers import lost_peers
from firetrain.transport.transport import Transport
from firetrain.words import named

ALGORITHMS = {"hierarchical": "HOROVOD_HIERARCHICAL_ALLREDUCE", "torus": "HOROVOD_TORUS_ALLREDUCE"}
_SETTINGS = {
    # no fusion: one operation per bucket, as in the other reductions
    "HOROVOD_FUSION_THRESHOLD": "0",
    # milliseconds between two checks of its thread for new work; the user's own setting has precedence
    "HOROVOD_CYCLE_TIME": "1",
}
# those among which Horovod sums in this process; empty for all
_members: tuple[int, ...] = ()


def start_horovod(transport: Transport, algorithm: str = "", *, defaults: bool = False) -> Any:
    """The module horovod.torch, initialised; it stays initialised until the transport is closed.

    Horovod is initialised only once per process, because initialising Horovod 0.28.1 on Gloo a second time kills the process.
    It reads its algorithm and its ranks at initialisation, so a process can use only one algorithm, among the same ranks.
    `defaults`: keep Horovod's own fusion and cycle time. UserError if Horovod is not installed, was built without a feature that
    is needed, or has been initialised otherwise.
    """
    global _members
    hvd = _load(algorithm)
    wanted = {variable: str(int(name == algorithm)) for name, variable in ALGORITHMS.items()}
    if hvd.is_initialized():
        if any(os.environ.get(key) != value for key, value in wanted.items()):
            raise UserError(
                f"Horovod is already initialised with another algorithm than {algorithm or 'none'}; "
                "a process can use one algorithm only"
            )
        if _members != transport.members:
            raise UserError(
                f"Horovod already sums among {_among(_members)} in this process, and cannot do so among "
                f"{_among(transport.members)}: use another reduction for one of the groups"
            )
        return hvd
    _members = transport.members
    limit = str(max(1, int(transport.timeout_s)))
    os.environ |= wanted | {
        "HOROVOD_GLOO_TIMEOUT_SECONDS": limit,
        "HOROVOD_STALL_CHECK_TIME_SECONDS": limit,
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": limit,
    }
    if not defaults:
        os.environ |= _SETTINGS | {key: os.environ[key] for key in _SETTINGS if key in os.environ}
    _connect(hvd, transport)
    transport.at_close.append(hvd.shutdown)
    return hvd


def _among(members: tuple[int, ...]) -> str:
    return named(members, "rank") if members else "all ranks"


def _load(algorithm: str) -> Any:
    """The library; UserError if it is not installed, or lacks a feature that the algorithm needs."""
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise UserError(f"reduction horovod: Horovod is not installed here ({error}); {HOROVOD_HINT}") from None
    if algorithm and not hvd.nccl_built():
        raise UserError(f"horovod:algorithm={algorithm} is for NCCL, and this Horovod was built without it; omit it")
    if algorithm == "hierarchical" and not hvd.mpi_built():
        raise UserError(
            "horovod:algorithm=hierarchical needs a Horovod built with both MPI and NCCL; torus needs only NCCL"
        )
    return hvd


def _connect(hvd: Any, transport: Transport) -> None:
    """Connect Horovod's ranks. FiretrainError if Horovod numbers the ranks differently."""
    server = None if _brings_its_own(transport, hvd) else _meeting(transport)
    with lost_peers(transport.rank, "the rendezvous of Horovod's ranks"):
        hvd.init()
    if (hvd.rank(), hvd.size()) != (transport.rank, transport.size):
        raise FiretrainError(
            f"Horovod says rank {hvd.rank()} of {hvd.size()}, firetrain {transport.rank} of {transport.size}: usually MPI has no "
            "PMI support under this srun (srun --mpi=list shows the options; set mpi in the site, for instance to pmix)"
        )
    transport.barrier()
    if server:
        server.stop()


def _brings_its_own(transport: Transport, hvd: Any) -> bool:
    """Whether the launcher connects Horovod's ranks: horovodrun does, and so do mpirun and srun --mpi=pmix if Horovod has MPI."""
    launcher = transport.identity.launcher
    by_mpi = launcher == "mpirun" or (launcher == "srun" and "PMIX_RANK" in os.environ)
    return launcher == "horovodrun" or (by_mpi and bool(hvd.mpi_built()))


def runs_over_mpi(hvd: Any) -> bool:
    """Whether Horovod runs over MPI."""
    return bool(hvd.mpi_built() and hvd.mpi_enabled())


def _meeting(transport: Transport) -> Any:
    """Start Horovod's rendezvous server on rank 0, which is returned there, and set the variables that Horovod's ranks read."""
    world, rank = transport.world, transport.rank
    server, port = None, 0
    if rank == 0:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousServer

        hosts = ",".join(f"node{node}:{len(ranks)}" for node, ranks in enumerate(world.nodes))
        server = RendezvousServer()
        port = server.start()
        server.init(get_host_assignments(parse_hosts(hosts), world.size))
    port = transport.broadcast_object(port)
    node = world.node_of[rank]
    local = world.nodes[node].index(rank)
    across = [ranks for ranks in world.nodes if len(ranks) > local]
    os.environ |= {
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(world.size),
        "HOROVOD_LOCAL_RANK": str(local),
        "HOROVOD_LOCAL_SIZE": str(len(world.nodes[node])),
        "HOROVOD_CROSS_RANK": str(across.index(world.nodes[node])),
        "HOROVOD_CROSS_SIZE": str(len(across)),
        "HOROVOD_HOSTNAME": f"node{node}",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": transport.meeting_host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    }
    if "GLOO_SOCKET_IFNAME" in os.environ:
        os.environ["HOROVOD_GLOO_IFACE"] = os.environ["GLOO_SOCKET_IFNAME"]
    return server
