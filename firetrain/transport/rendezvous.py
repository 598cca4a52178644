"""Rendezvous of the ranks, for every launcher."""

from __future__ import annotations

import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore, rendezvous  # type: ignore[attr-defined]

from firetrain.cluster import Identity, World
from firetrain.errors import LostPeer, UserError
from firetrain.records.file import write_whole
from firetrain.transport import nccl_log
from firetrain.transport.agreement import each_has_a_gpu
from firetrain.transport.device import backend_of, choose_device, gpu_uuid, is_gpu
from firetrain.transport.lost_peers import lost_peers
from firetrain.transport.transport import Transport
from firetrain.transport.watchdog import Watchdog

# set by firetrain's launcher: a file in which rank 0 publishes the address of its store
RENDEZVOUS = "FIRETRAIN_RENDEZVOUS"
RENDEZVOUS_HOST = "FIRETRAIN_RENDEZVOUS_HOST"

# set by horovodrun: the address of its key-value store, which uses HTTP
_HOROVOD_STORE = ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")

_MEETING = "the rendezvous of all ranks"


def connect(
    identity: Identity,
    transport: str = "auto",
    timeout_s: float = 300.0,
    reductions: Sequence[str] = (),
    meeting: tuple[str, Store] | None = None,
) -> Transport:
    """Join the process group that the environment describes; a world of one rank needs none.

    `transport`: auto (nccl if this rank has a GPU, otherwise gloo), gloo or nccl. FiretrainError if it is not available.
    `reductions`: those that will be used; for some, NCCL's log is enabled, which must happen before NCCL starts. `meeting`: what
    `meet` returned, if the ranks have met already.
    """
    device = choose_device(identity, transport)
    name = backend_of(device)
    if name == "nccl" and nccl_log.is_needed(reductions):
        nccl_log.keep()
    if identity.world_size == 1:
        return Transport(name, identity, World.even(1, 1), device, timeout_s)
    labels: list[Any] = [None] * identity.world_size
    options: dict[str, Any] = {"rank": identity.rank, "world_size": identity.world_size}
    host, options["store"] = meeting or meet(identity, timeout_s)
    with lost_peers(identity.rank, _MEETING):
        own = gpu_uuid(device) if is_gpu(device) else "cpu"
        if not each_has_a_gpu(options["store"], identity, own, transport):
            device = torch.device("cpu")
            name = backend_of(device)
        if is_gpu(device):
            options["device_id"] = device
        with _watched(device, identity, timeout_s):
            dist.init_process_group(name, timeout=timedelta(seconds=timeout_s), **options)
            dist.all_gather_object(labels, (socket.gethostname(), identity.node))
    return Transport(name, identity, World.from_labels(labels), device, timeout_s, host, options["store"])


@contextmanager
def _watched(device: torch.device, identity: Identity, timeout_s: float) -> Iterator[None]:
    """Context manager: on a GPU the watchdog ends the process if the ranks do not meet, because NCCL would wait for ever."""
    if not is_gpu(device):
        yield
        return
    watchdog = Watchdog(identity.rank, timeout_s, device)
    try:
        with watchdog.during(_MEETING):
            yield
    finally:
        watchdog.close()


def meet(identity: Identity, timeout_s: float) -> tuple[str, Store]:
    """The host of rank 0, and a store through which the ranks find each other. LostPeer if rank 0 cannot be found in time."""
    with lost_peers(identity.rank, _MEETING):
        return _meet(identity, timeout_s)


def _meet(identity: Identity, timeout_s: float) -> tuple[str, Store]:
    if RENDEZVOUS in os.environ:
        ours = _store(identity, Path(os.environ[RENDEZVOUS]), timeout_s)
        return ours.host, ours
    if identity.launcher == "horovodrun" and _HOROVOD_STORE[0] in os.environ:
        ours = _store_by_horovod(identity, timeout_s)
        return ours.host, ours
    if "MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ:
        raise UserError(
            f"{identity.launcher} started {identity.world_size} ranks, but MASTER_ADDR and MASTER_PORT are not both set: "
            "export them (rank 0's host, and any free port on it), or use firetrain launch"
        )
    limit = timedelta(seconds=timeout_s)
    store, _, _ = next(rendezvous("env://", identity.rank, identity.world_size, timeout=limit))
    return os.environ["MASTER_ADDR"], store


def _store(identity: Identity, meeting: Path, timeout_s: float) -> TCPStore:
    """A store whose port is chosen by the system on rank 0, so that runs cannot collide; a file contains its address."""
    limit = timedelta(seconds=timeout_s)
    host = os.environ.get(RENDEZVOUS_HOST, "127.0.0.1")
    if identity.is_first:
        store = TCPStore(host, 0, identity.world_size, True, limit, wait_for_workers=False)
        write_whole(meeting, f"{host} {store.port}\n")
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
    """Like `_store`, but with the address in horovodrun's key-value store instead of a shared file."""
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
        except urllib.error.HTTPError:  # 404: rank 0 has not published its address yet
            if time.monotonic() > deadline:
                raise LostPeer(
                    f"rank {identity.rank}: rank 0 did not publish its address within {timeout_s:g} s"
                ) from None
        time.sleep(0.05)


def _address_towards(host: str, port: int) -> str:
    """The address of this host that is used on the route to `host`."""
    with socket.create_connection((host, port), timeout=30) as connection:
        return str(connection.getsockname()[0])
