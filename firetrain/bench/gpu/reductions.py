"""Every reduction among several ranks, on one GPU if there is only one: right or wrong, never timed.

NCCL refuses two ranks on one GPU unless they claim to be on different hosts (NCCL_HOSTID). Their messages then take the way
through the host, so nothing about speed follows.
"""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from firetrain.cluster import Identity, World
from firetrain.config.names import TOPOLOGIES, installed_names
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.context import Context
from firetrain.reduction.interface import Bucket
from firetrain.transport.device import is_gpu
from firetrain.transport.transport import Transport

RANKS = 4
_LENGTHS = (1 << 16, 1003)
_LIMIT_S = 60.0
# two ranks of one GPU claim to be hosts that talk over loopback
_SHARED_GPU = {
    "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NVLS_ENABLE": "0", "NCCL_MNNVL_ENABLE": "0", "NCCL_CUMEM_ENABLE": "0", "NCCL_MAX_NCHANNELS": "2",
    "NCCL_PROTO": "Simple",
}  # fmt: skip


def verify(device: torch.device) -> dict[str, Any]:
    """For each reduction and wire dtype "right", or what is wrong with it, on the first rank that noticed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = processes.get_context("spawn")
    results = context.SimpleQueue()  # which has written when `put` returns: the ranks end at once afterwards
    ranks = [context.Process(target=_rank, args=(rank, port, device, results), daemon=True) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    found = [results.get() for _ in ranks]
    for process in ranks:
        process.kill()
        process.join()
    cases = {name: next((one[name] for one in found if one[name] != "right"), "right") for name in found[0]}
    return {"ranks": RANKS, "transport": "nccl" if is_gpu(device) else "gloo", "cases": cases}


def _rank(rank: int, port: int, device: torch.device, results: Any) -> None:
    try:
        transport = _connect(rank, port, device)
        results.put(dict(_cases(transport)))
        transport.barrier()
    except BaseException:
        results.put({"connect": traceback.format_exc().splitlines()[-1]})
    os._exit(0)


def _connect(rank: int, port: int, device: torch.device) -> Transport:
    torch.set_num_threads(1)
    name = "nccl" if is_gpu(device) else "gloo"
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"}
    if is_gpu(device):
        several = torch.cuda.device_count() >= RANKS
        device = torch.device("cuda", rank if several else 0)
        torch.cuda.set_device(device)
        if not several:
            os.environ |= {**_SHARED_GPU, "NCCL_HOSTID": f"rank{rank}"}
    store = dist.TCPStore("127.0.0.1", port, RANKS, rank == 0, timedelta(seconds=_LIMIT_S))  # type: ignore[attr-defined]
    options: dict[str, Any] = {"device_id": device} if is_gpu(device) else {}
    dist.init_process_group(
        name, store=store, rank=rank, world_size=RANKS, timeout=timedelta(seconds=_LIMIT_S), **options
    )
    world = World.even(2, RANKS // 2)
    return Transport(name, Identity("none", rank, RANKS, rank, RANKS), world, device, _LIMIT_S)


def _cases(transport: Transport) -> Sequence[tuple[str, str]]:
    names = (
        "native",
        *installed_names(TOPOLOGIES),
        "hierarchical:inner=native" if transport.name == "nccl" else "auto",
    )
    return [(f"{name} {dtype}", _check(transport, name, dtype)) for name in names for dtype in ("float32", "bfloat16")]


def _check(transport: Transport, name: str, dtype: str) -> str:
    """Two buckets under way together, three times; whole numbers small enough to be exact in the wire dtype."""
    reduction = find_reduction(name, Context(transport, dtype))
    buckets = [Bucket(torch.zeros(length, device=transport.device), number) for number, length in enumerate(_LENGTHS)]
    reduction.prepare(buckets)
    for step in range(3):
        pending = []
        for bucket in buckets:
            _write_late(bucket.buffer, transport.rank, step)
            pending.append(reduction.start(bucket, step))
        for one in pending:
            one.wait()
        for bucket in buckets:
            expected = sum(_numbers(len(bucket), rank, step) for rank in range(transport.size))
            wrong = int((bucket.buffer.cpu() != expected).sum())
            same = transport.gather(bucket.buffer)
            if wrong:
                return f"step {step}, bucket {bucket.number}: {wrong} of {len(bucket)} elements are wrong"
            if any(not torch.equal(one, same[0]) for one in same):
                return f"step {step}, bucket {bucket.number}: ranks differ"
    reduction.close()
    return "right"


def _write_late(buffer: torch.Tensor, rank: int, step: int) -> None:
    """Fill the buffer after a pause of the device, so that a reduction which does not wait for it sums NaN."""
    numbers = _numbers(len(buffer), rank, step).to(buffer.device)
    buffer.fill_(float("nan"))
    if is_gpu(buffer.device):
        torch.cuda._sleep(20_000_000)  # about 10 ms
    buffer.copy_(numbers)


def _numbers(length: int, rank: int, step: int) -> torch.Tensor:
    """Whole numbers from -8 to 8: their sum over the ranks is exact in bfloat16."""
    return (torch.arange(length) * (rank + 3) + 7 * step + rank).remainder(17).float() - 8
