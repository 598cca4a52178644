"""Several ranks for checks of correctness, on one GPU if there is only one; never for timing.

NCCL refuses two ranks on one GPU unless they claim to be on different hosts (NCCL_HOSTID). Their messages then pass
through the host, so their times say nothing about the links of GPUs.
"""

from __future__ import annotations

import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from firetrain.cluster import Identity, World
from firetrain.cluster.parent import end_with_parent
from firetrain.config.names import TOPOLOGIES, installed_names
from firetrain.transport.device import is_gpu
from firetrain.transport.transport import Transport

_LIMIT_S = 50.0
_AFTER_AN_ERROR_S = 5.0
# two ranks of one GPU claim to be hosts that talk over loopback
_SHARED_GPU = {
    "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NVLS_ENABLE": "0", "NCCL_MNNVL_ENABLE": "0", "NCCL_CUMEM_ENABLE": "0", "NCCL_MAX_NCHANNELS": "2",
    "NCCL_PROTO": "Simple",
}  # fmt: skip


def on_ranks(
    cases: Callable[[Transport], Iterator[tuple[str, Any]]], device: torch.device, count: int, *, library: str = ""
) -> list[dict[str, Any]]:
    """What `cases` yields on each of `count` ranks; a rank that fails has a case `error`, with the last line of its traceback.

    `library`: nccl or gloo; default: nccl on a GPU.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = processes.get_context("spawn")
    results = context.SimpleQueue()  # which has written when `put` returns: the ranks end at once afterwards
    arguments = (count, port, device, library or ("nccl" if is_gpu(device) else "gloo"), cases, results)
    ranks = [context.Process(target=_rank, args=(rank, *arguments), daemon=True) for rank in range(count)]
    for process in ranks:
        process.start()
    found = _collect(results, ranks)
    for process in ranks:
        process.kill()
        process.join()
    return [found.get(rank, {"error": f"no result, exit code {one.exitcode}"}) for rank, one in enumerate(ranks)]


def _collect(results: Any, ranks: Sequence[Any]) -> dict[int, dict[str, Any]]:
    """The results by rank. After an error of one rank the others, which may wait for it, have a few seconds left."""
    found: dict[int, dict[str, Any]] = {}
    deadline = time.monotonic() + _LIMIT_S
    while len(found) < len(ranks) and time.monotonic() < deadline:
        if not results.empty():
            rank, one = results.get()
            found[rank] = one
            deadline = min(deadline, time.monotonic() + _AFTER_AN_ERROR_S) if "error" in one else deadline
        elif not any(process.is_alive() for process in ranks):
            break
        else:
            time.sleep(0.02)
    return found


def reductions(transport: Transport) -> tuple[str, ...]:
    """The names of the reductions to check: all plans, and those of the libraries that work on this transport."""
    other = "hierarchical:inner=native" if transport.name == "nccl" else "auto"
    return ("native", *installed_names(TOPOLOGIES), other)


def _rank(rank: int, count: int, port: int, device: torch.device, library: str, cases: Any, results: Any) -> None:
    end_with_parent(signal.SIGKILL)  # the part, which is killed if it takes too long
    found: dict[str, Any] = {}
    try:
        transport = _connect(rank, count, port, device, library)
        for name, value in cases(transport):
            found[name] = value
        transport.barrier()
    except BaseException:
        found["error"] = traceback.format_exc().splitlines()[-1]
    results.put((rank, found))
    os._exit(0)


def _connect(rank: int, count: int, port: int, device: torch.device, library: str) -> Transport:
    torch.set_num_threads(1)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"}
    if is_gpu(device):
        several = torch.cuda.device_count() >= count
        device = torch.device("cuda", rank if several else 0)
        torch.cuda.set_device(device)
        if not several:
            os.environ |= {**_SHARED_GPU, "NCCL_HOSTID": f"rank{rank}"}
    store = dist.TCPStore("127.0.0.1", port, count, rank == 0, timedelta(seconds=_LIMIT_S))  # type: ignore[attr-defined]
    options: dict[str, Any] = {"device_id": device} if library == "nccl" else {}
    dist.init_process_group(
        library, store=store, rank=rank, world_size=count, timeout=timedelta(seconds=_LIMIT_S), **options
    )
    world = World.even(2, count // 2) if count % 2 == 0 else World.even(1, count)
    return Transport(library, Identity("none", rank, count, rank, count), world, device, _LIMIT_S)
