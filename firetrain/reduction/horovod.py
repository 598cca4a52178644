"""Horovod's all-reduce on our buckets."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from firetrain.doctor import HOROVOD_HINT
from firetrain.errors import FiretrainError, UserError
from firetrain.reduction.interface import Bucket, Pending, Reduction
from firetrain.reduction.transport import Transport, lost_peers
from firetrain.reduction.wiring import Wiring

ALGORITHMS = {"hierarchical": "HOROVOD_HIERARCHICAL_ALLREDUCE", "torus": "HOROVOD_TORUS_ALLREDUCE"}
OPERATIONS = ("sum", "adasum")
# Horovod knows a reduction by its name, which must be free again before it is used anew: so many of one bucket may be under way
_UNDER_WAY = 16
_SETTINGS = {
    # each bucket by itself, as in every other reduction
    "HOROVOD_FUSION_THRESHOLD": "0",
    # how often, in ms, its thread looks for new work; what a user has set stays
    "HOROVOD_CYCLE_TIME": "1",
}


class Horovod(Reduction):
    """`hvd.grouped_allreduce_async_` of one bucket at a time, without Horovod's fusion.

    `op`: sum, or adasum (Maleki et al. 2020), which adds orthogonal gradients and averages parallel ones, for a number of ranks
    that is a power of two. `algorithm`: hierarchical or torus, where the build has them (NCCL). With a wire dtype of half the
    bytes Horovod adds in it too. UserError if Horovod is not here, or was built without what is asked for.
    """

    def __init__(self, wiring: Wiring, op: str = "sum", algorithm: str = "") -> None:
        self._transport, self._dtype = wiring.transport, wiring.dtype
        if op not in OPERATIONS or algorithm not in ("", *ALGORITHMS):
            raise UserError(
                f"horovod: op is sum or adasum, algorithm hierarchical or torus (got op={op}, algorithm={algorithm or 'none'})"
            )
        size = wiring.transport.size
        if op == "adasum" and size & (size - 1):
            raise UserError(
                f"horovod:op=adasum needs a power of two ranks, as it halves them again and again (ranks: {size})"
            )
        self._hvd = connect_horovod(wiring.transport, algorithm)
        self._op = self._hvd.Adasum if op == "adasum" else self._hvd.Sum
        if op == "adasum" and not _by_mpi(self._hvd) and wiring.transport.name != "nccl":
            raise UserError(
                "horovod:op=adasum on CPUs is MPI's: start the ranks by mpirun (the site's launcher) with a Horovod that was "
                "built with MPI"
            )
        # of gradients that are sums over a rank's images Adasum makes one that is a sum over one rank's
        self._factor = size if op == "adasum" else 1
        self._algorithm = algorithm
        self._starts: Counter[tuple[int, int]] = Counter()

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Hand the bucket to Horovod's thread."""
        key = (bucket.number, len(bucket))
        self._starts[key] += 1
        name = f"bucket {bucket.number}, {len(bucket)}, {self._starts[key] % _UNDER_WAY}"
        wire = bucket.buffer if self._dtype == torch.float32 else bucket.buffer.to(self._dtype)
        where = f"Horovod's all-reduce of step {step}, bucket {bucket.number}"
        with lost_peers(self._transport.rank, where):
            handle = self._hvd.grouped_allreduce_async_([wire], name=name, op=self._op)
        return _Handle(self, handle, bucket.buffer, wire, where)

    def facts(self) -> dict[str, Any]:
        """What this Horovod is and was told."""
        parts = [part for part in ("mpi", "gloo", "nccl") if getattr(self._hvd, f"{part}_built")()]
        controller = "mpi" if _by_mpi(self._hvd) else "gloo"
        return {"version": _version(), "built_with": parts, "controller": controller, "algorithm": self._algorithm}

    def finish(self, handle: int, buffer: Tensor, wire: Tensor, where: str) -> None:
        """Wait for the sum; put it where it belongs."""
        with lost_peers(self._transport.rank, where):
            self._hvd.synchronize(handle)
        if wire is not buffer:
            buffer.copy_(wire)
        if self._factor != 1:
            buffer.mul_(self._factor)


class _Handle:
    """An all-reduce under way."""

    def __init__(self, reduction: Horovod, handle: int, buffer: Tensor, wire: Tensor, where: str) -> None:
        self._reduction, self._rest = reduction, (handle, buffer, wire, where)

    def wait(self) -> None:
        """Until the sum is there; also on a GPU the host waits."""
        self._reduction.finish(*self._rest)


def connect_horovod(transport: Transport, algorithm: str = "", *, defaults: bool = False) -> Any:
    """horovod.torch, its ranks met: once per process, until the transport is closed.

    Shut down and started again it ends the process (seen with 0.28.1 on Gloo), and it reads its algorithm at the start: so a
    process has one. `defaults`: with Horovod's own fusion and cycle, as a peer to be measured against.
    """
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise UserError(f"reduction horovod: Horovod is not installed here ({error}); {HOROVOD_HINT}") from None
    if algorithm and not hvd.nccl_built():
        raise UserError(
            f"horovod:algorithm={algorithm} is for NCCL, and this Horovod was built without it; leave it away"
        )
    if algorithm == "hierarchical" and not hvd.mpi_built():
        raise UserError(
            "horovod:algorithm=hierarchical needs a Horovod built with MPI beside NCCL; torus needs NCCL alone"
        )
    wanted = {variable: str(int(name == algorithm)) for name, variable in ALGORITHMS.items()}
    if hvd.is_initialized():
        if any(os.environ.get(key) != value for key, value in wanted.items()):
            raise UserError(
                f"horovod reads its algorithm when it starts, and has started here without {algorithm or 'none'}"
            )
        return hvd
    limit = str(max(1, int(transport.timeout_s)))
    os.environ |= wanted | {
        "HOROVOD_GLOO_TIMEOUT_SECONDS": limit,
        "HOROVOD_STALL_CHECK_TIME_SECONDS": limit,
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": limit,
    }
    if not defaults:
        os.environ |= _SETTINGS | {key: os.environ[key] for key in _SETTINGS if key in os.environ}
    server = None
    if not _brings_its_own(transport, hvd):
        server = _meeting(transport)
    with lost_peers(transport.rank, "the meeting of Horovod's ranks"):
        hvd.init()
    if (hvd.rank(), hvd.size()) != (transport.rank, transport.size):
        raise FiretrainError(
            f"Horovod says rank {hvd.rank()} of {hvd.size()}, firetrain {transport.rank} of {transport.size}: the usual cause is "
            "that MPI did not get PMI from Slurm (srun --mpi=list tells what there is; set the site's mpi, for instance pmix)"
        )
    transport.barrier()
    if server:
        server.stop()
    transport.at_close.append(hvd.shutdown)
    return hvd


def _brings_its_own(transport: Transport, hvd: Any) -> bool:
    """Whether the launcher has told Horovod where to meet: horovodrun; mpirun or srun --mpi=pmix to a Horovod with MPI."""
    launcher = transport.identity.launcher
    by_mpi = launcher == "mpirun" or (launcher == "srun" and "PMIX_RANK" in os.environ)
    return launcher == "horovodrun" or (by_mpi and bool(hvd.mpi_built()))


def _by_mpi(hvd: Any) -> bool:
    """Whether it runs over MPI."""
    return bool(hvd.mpi_built() and hvd.mpi_enabled())


def _meeting(transport: Transport) -> Any:
    """Horovod's rendezvous in rank 0, and the variables by which all ranks find it and know who they are."""
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


def _version() -> str:
    from importlib.metadata import version

    return version("horovod")
