"""The ranks, connected: torch.distributed's process group over Gloo (CPU) or NCCL (GPU), and small exchanges over it."""

from __future__ import annotations

import os
import secrets
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from firetrain.cluster import Identity, World
from firetrain.errors import FiretrainError, LostPeer, UserError
from firetrain.reduction import nccl_log
from firetrain.reduction.lane import Lane
from firetrain.reduction.mesh import Mesh, own_address
from firetrain.reduction.wire import bytes_of

# set by firetrain's launcher: a file in which rank 0 publishes the address of its store
RENDEZVOUS = "FIRETRAIN_RENDEZVOUS"
RENDEZVOUS_HOST = "FIRETRAIN_RENDEZVOUS_HOST"


# set by horovodrun: where its key-value store, which speaks HTTP, listens
_HOROVOD_STORE = ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")


@dataclass(frozen=True, eq=False)
class Transport:
    """A connected world: who this rank is, all ranks and their nodes, the device it computes on.

    `at_close`: what other libraries want done before the ranks part.
    """

    name: str
    identity: Identity
    world: World
    device: torch.device
    timeout_s: float
    meeting_host: str = "127.0.0.1"
    at_close: list[Callable[[], None]] = field(default_factory=list)

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self.identity.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.world.size

    def sum(self, values: Tensor) -> Tensor:
        """Small tensors: the elementwise sum over all ranks, in place; the same bits on all ranks."""
        if self.size > 1:
            with lost_peers(self.rank, "a sum over all ranks"):
                dist.all_reduce(values)
        return values

    def gather(self, values: Tensor) -> list[Tensor]:
        """Small tensors of one shape: those of all ranks, in rank order."""
        if self.size == 1:
            return [values]
        gathered = [torch.empty_like(values) for _ in range(self.size)]
        with lost_peers(self.rank, "a gather over all ranks"):
            dist.all_gather(gathered, values)
        return gathered

    def broadcast(self, values: Tensor) -> Tensor:
        """Rank 0's content on all ranks, in place."""
        if self.size > 1:
            with lost_peers(self.rank, "a broadcast from rank 0"):
                dist.broadcast(values, 0)
        return values

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's small Python object on all ranks."""
        if self.size == 1:
            return value
        box = [value]
        with lost_peers(self.rank, "a broadcast from rank 0"):
            dist.broadcast_object_list(box, 0)
        return box[0]

    def gather_objects(self, value: Any) -> list[Any]:
        """The small Python objects of all ranks, in rank order."""
        values: list[Any] = [value] * self.size
        if self.size > 1:
            with lost_peers(self.rank, "a gather over all ranks"):
                dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.sum(torch.zeros(1, device=self.device))

    def exchange(self, send: tuple[int, Tensor] | None, receive: tuple[int, Tensor] | None) -> None:
        """Send to one rank and receive from one at once, over what plans travel on; connect to them first."""
        if self.name == "nccl":
            operations = [dist.P2POp(dist.irecv, receive[1], receive[0])] if receive else []
            operations += [dist.P2POp(dist.isend, send[1], send[0])] if send else []
            for work in dist.batch_isend_irecv(operations):
                work.wait()
        else:
            self.mesh.exchange(
                send and (send[0], bytes_of(send[1])),
                receive and (receive[0], bytes_of(receive[1])),
            )

    @cached_property
    def lane(self) -> Lane:
        """In which plans are executed on the CPU."""
        return Lane()

    @cached_property
    def mesh(self) -> Mesh:
        """The connections over which plans are executed on the CPU; all ranks ask for it the first time together."""
        address = own_address(self.meeting_host, len(self.world.nodes) == 1)
        secret = self.broadcast_object(secrets.token_bytes(16))
        return Mesh(self.rank, self.timeout_s, address, self.meeting_host, secret)

    def connect_to(self, peers: Collection[int]) -> None:
        """Open this rank's connections to `peers`; all ranks call it together, for pairs that agree. NCCL does so itself."""
        if self.name == "nccl":
            return
        places = self.gather_objects(self.mesh.place)
        with lost_peers(self.rank, f"connections to ranks {sorted(peers)}"):
            self.mesh.connect(peers, places)

    def close(self) -> None:
        """Leave the process group, close connections."""
        for leave in self.at_close:
            leave()
        for name in ("lane", "mesh"):
            if name in self.__dict__:
                getattr(self, name).close()
        if dist.is_initialized():
            dist.destroy_process_group()


class lost_peers:  # noqa: N801 reads as a statement: with lost_peers(...)
    """Turn torch.distributed's and sockets' errors into LostPeer, saying what this rank was waiting for."""

    def __init__(self, rank: int, waiting_for: str) -> None:
        self.text = f"rank {rank}: {waiting_for} did not complete, another rank is gone or silent"

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Rename torch's RuntimeErrors, and the system's."""
        if isinstance(error, RuntimeError | OSError):
            raise LostPeer(f"{self.text}: {str(error).splitlines()[0]}") from error


def connect(
    identity: Identity, transport: str = "auto", timeout_s: float = 300.0, reductions: Sequence[str] = ()
) -> Transport:
    """Join the process group that the environment describes; a world of one rank needs none.

    `transport`: auto (nccl where this rank has a GPU, else gloo), gloo, nccl. FiretrainError if it cannot be had.
    `reductions` that ask NCCL for an algorithm make it keep a log, which has to be arranged before it starts.
    """
    device = _device(identity, transport)
    name = "nccl" if device.type == "cuda" else "gloo"
    if name == "nccl" and any("algorithm=" in reduction for reduction in reductions):
        nccl_log.keep()
    if identity.world_size == 1:
        return Transport(name, identity, World.even(1, 1), device, timeout_s)
    options: dict[str, Any] = {"device_id": device} if device.type == "cuda" else {}
    with lost_peers(identity.rank, "the meeting of all ranks"):
        host, meeting = _meeting(identity, timeout_s)
        options |= meeting
        dist.init_process_group(name, timeout=timedelta(seconds=timeout_s), **options)
        labels: list[Any] = [None] * identity.world_size
        dist.all_gather_object(labels, (socket.gethostname(), identity.node))
    return Transport(name, identity, World.from_labels(labels), device, timeout_s, host)


def _device(identity: Identity, transport: str) -> torch.device:
    visible = torch.cuda.device_count() if transport != "gloo" else 0
    if visible == 0:
        if transport == "nccl":
            raise FiretrainError("cluster.transport is nccl, but torch sees no GPU; use gloo or auto")
        return torch.device("cpu")
    # a launcher gives each rank one GPU to see, or all of its node's
    if visible != 1 and identity.local_rank >= visible:
        raise UserError(
            f"rank {identity.rank} is number {identity.local_rank} on its node, which has {visible} GPUs; "
            "one rank drives one GPU: lower cluster.ranks_per_node"
        )
    device = torch.device("cuda", 0 if visible == 1 else identity.local_rank)
    torch.cuda.set_device(device)
    return device


def _meeting(identity: Identity, timeout_s: float) -> tuple[str, dict[str, Any]]:
    """Rank 0's host, and how the ranks find each other, as arguments of init_process_group."""
    place = {"rank": identity.rank, "world_size": identity.world_size}
    if RENDEZVOUS in os.environ:
        store = _store(identity, Path(os.environ[RENDEZVOUS]), timeout_s)
        return store.host, place | {"store": store}
    if identity.launcher == "horovodrun" and _HOROVOD_STORE[0] in os.environ:
        store = _store_by_horovod(identity, timeout_s)
        return store.host, place | {"store": store}
    if "MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ:
        raise UserError(
            f"{identity.launcher} started {identity.world_size} ranks, but MASTER_ADDR and MASTER_PORT do not say where "
            "they meet; export both (any free port on rank 0's host), or use firetrain launch"
        )
    return os.environ["MASTER_ADDR"], place | {"init_method": "env://"}


def _store(identity: Identity, meeting: Path, timeout_s: float) -> TCPStore:
    """Rank 0 opens a store on a port that the system chooses and writes its address to a file: no two runs can collide."""
    limit = timedelta(seconds=timeout_s)
    host = os.environ.get(RENDEZVOUS_HOST, "127.0.0.1")
    if identity.is_first:
        store = TCPStore(host, 0, identity.world_size, True, limit, wait_for_workers=False)
        draft = meeting.with_suffix(".draft")
        draft.write_text(f"{host} {store.port}\n")
        draft.rename(meeting)
        return store
    deadline = time.monotonic() + timeout_s
    while not meeting.exists():
        if time.monotonic() > deadline:
            raise LostPeer(
                f"rank {identity.rank}: rank 0 did not publish its address in {meeting} within {timeout_s:g} s"
            )
        time.sleep(0.02)
    address, port = meeting.read_text().split()
    return TCPStore(address, int(port), identity.world_size, False, limit)


def _store_by_horovod(identity: Identity, timeout_s: float) -> TCPStore:
    """The same, the address told through the store of horovodrun instead of a file that all hosts see."""
    address, port = (os.environ[name] for name in _HOROVOD_STORE)
    url, limit = f"http://{address}:{port}/firetrain/meeting", timedelta(seconds=timeout_s)
    if identity.is_first:
        host = _address_towards(address, int(port))
        store = TCPStore(host, 0, identity.world_size, True, limit, wait_for_workers=False)
        request = urllib.request.Request(url, data=f"{host} {store.port}".encode(), method="PUT")
        urllib.request.urlopen(request, timeout=timeout_s).close()
        return store
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with urllib.request.urlopen(url, timeout=timeout_s) as answer:
                host, number = answer.read().decode().split()
                return TCPStore(host, int(number), identity.world_size, False, limit)
        except urllib.error.HTTPError:  # 404: rank 0 has not said it yet
            if time.monotonic() > deadline:
                raise LostPeer(
                    f"rank {identity.rank}: rank 0 did not publish its address within {timeout_s:g} s"
                ) from None
        time.sleep(0.05)


def _address_towards(host: str, port: int) -> str:
    """This host's own address, as seen by one who talks to `host`."""
    with socket.create_connection((host, port), timeout=30) as connection:
        return str(connection.getsockname()[0])
