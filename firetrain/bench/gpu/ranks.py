"""Several ranks for checks of correctness, on one GPU if there is only one; never for timing.

NCCL refuses two ranks on one GPU unless they claim to be on different hosts (NCCL_HOSTID). Their messages then pass
through the host, so their times say nothing about the links of GPUs.
"""

from __future__ import annotations

import math
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from firetrain.cluster import Identity, World
from firetrain.cluster.parent import end_with_parent
from firetrain.config.names import TOPOLOGIES, installed_names
from firetrain.errors import FiretrainError
from firetrain.transport.device import backend_of, is_gpu, visible_gpus
from firetrain.transport.transport import Transport

# the limit of what ranks wait for each other, and of a check without a deadline
_LIMIT_S = 90.0
# seconds in which ranks that share a GPU must have summed something over NCCL, which may refuse them or hang
_FIRST_S = 25.0
_SUM = "a first sum"
# seconds before the end of a check in which its ranks are given up, so that their results are kept
_SPARE_S = 10.0
_ends_s = math.inf
_AFTER_AN_ERROR_S = 5.0
_ALGORITHMS = 4
_LAST_WORDS = 15
_NO_RESULT = "no result"
# marks the end of a rank's results
_END = "."
# two ranks of one GPU claim to be hosts that talk over loopback
_SHARED_GPU = {
    "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NVLS_ENABLE": "0", "NCCL_MNNVL_ENABLE": "0", "NCCL_CUMEM_ENABLE": "0", "NCCL_MAX_NCHANNELS": "2",
    "NCCL_PROTO": "Simple",
}  # fmt: skip


def ends_at(monotonic_s: float) -> None:
    """Set the deadline of this process on the monotonic clock; its ranks must end before it."""
    global _ends_s
    _ends_s = monotonic_s


def few_algorithms() -> None:
    """Let cuDNN choose among few algorithms for each convolution: every process of the kit chooses anew."""
    torch.backends.cudnn.benchmark_limit = _ALGORITHMS


def on_ranks(
    cases: Callable[[Transport], Iterator[tuple[str, Any]]],
    device: torch.device,
    count: int,
    *,
    library: str = "",
    first_s: float = _LIMIT_S,
    timeout_s: float = _LIMIT_S,
) -> list[dict[str, Any]]:
    """What `cases` yields on each of `count` ranks; a rank that fails has a case `error`, with the end of its traceback.

    Results arrive one by one, so that those before a failure, or before the time limit, are kept. `library`: nccl or gloo;
    default: nccl on a GPU. `first_s`: seconds in which each rank must have a result.
    `timeout_s`: limit of waiting for other ranks.
    """
    # in this process, at a port that the system chooses: between the choice and the start of a rank, another could take it
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    context = processes.get_context("spawn")
    results = context.SimpleQueue()  # which has written when `put` returns: the ranks end at once afterwards
    arguments = (count, store.port, device, library or backend_of(device), timeout_s, cases, results)
    ranks = [context.Process(target=_rank, args=(rank, *arguments), daemon=True) for rank in range(count)]
    for process in ranks:
        process.start()
    limit_s = _LIMIT_S if math.isinf(_ends_s) else max(1.0, _ends_s - time.monotonic() - _SPARE_S)
    found = _collect(results, ranks, limit_s, first_s)
    for process in ranks:
        process.kill()
    for process in ranks:
        process.join()
    return found


def on_ranks_sharing(
    cases: Callable[[Transport], Iterator[tuple[str, Any]]],
    device: torch.device,
    count: int,
    timeout_s: float = _LIMIT_S,
) -> tuple[str, list[dict[str, Any]]]:
    """As `on_ranks`, for ranks that may share a GPU: over Gloo if NCCL refuses them or hangs. Also how they communicated."""
    if not is_gpu(device):
        return "gloo", on_ranks(cases, device, count, timeout_s=timeout_s)
    found = on_ranks(partial(_after_a_sum, cases), device, count, first_s=_FIRST_S, timeout_s=timeout_s)
    works = [one.pop(_SUM, 0.0) == count for one in found]
    if all(works):
        return "nccl", found
    failed = next(one["error"] for one, worked in zip(found, works, strict=True) if not worked)
    library = f"gloo on the host, because nothing worked over NCCL: {failed}"
    return library, on_ranks(cases, device, count, library="gloo", timeout_s=timeout_s)


def _after_a_sum(
    cases: Callable[[Transport], Iterator[tuple[str, Any]]], transport: Transport
) -> Iterator[tuple[str, Any]]:
    yield _SUM, float(transport.sum(torch.ones(1, device=transport.device)))
    yield from cases(transport)


def _collect(results: Any, ranks: Sequence[Any], limit_s: float, first_s: float) -> list[dict[str, Any]]:
    """The results by rank. After an error of one rank the others, which may wait for it, have a few seconds left."""
    found: list[dict[str, Any]] = [{} for _ in ranks]
    left, began_s = set(range(len(ranks))), time.monotonic()
    deadline = began_s + limit_s
    while left and time.monotonic() < (deadline if all(found) else min(deadline, began_s + first_s)):
        if not results.empty():
            rank, name, value = results.get()
            if name == _END:
                left.discard(rank)
            else:
                found[rank][name] = value
                deadline = min(deadline, time.monotonic() + _AFTER_AN_ERROR_S) if name == "error" else deadline
        elif not any(process.is_alive() for process in ranks):
            break
        else:
            time.sleep(0.02)
    for rank in left:
        last = next(reversed(found[rank]), "the start")
        found[rank].setdefault("error", f"{_NO_RESULT} after {last}; exit code {ranks[rank].exitcode}")
    return found


def reductions(transport: Transport) -> tuple[str, ...]:
    """The names of the reductions to check: all plans, and those of the libraries that work on this transport.

    `auto` is the last one, because it measures before it chooses, which takes long among ranks that share a GPU.
    """
    # on NCCL, hierarchical is another implementation unless its inner plan is named
    of_nccl = ("hierarchical:inner=ring", "native:algorithm=ring", "native:algorithm=tree")
    return (
        "native",
        *installed_names(TOPOLOGIES),
        *(of_nccl if transport.on_nccl else ()),
        "auto:candidates=native+ring",
    )


def raise_errors(found: Sequence[Mapping[str, Any]]) -> None:
    """FiretrainError with what a rank raised, if one did; what ranks lack because another one failed comes last."""
    errors = sorted((one["error"] for one in found if "error" in one), key=lambda text: text.startswith(_NO_RESULT))
    if errors:
        raise FiretrainError(errors[0])


def _rank(
    rank: int, count: int, port: int, device: torch.device, library: str, timeout_s: float, cases: Any, results: Any
) -> None:
    end_with_parent(signal.SIGKILL)  # the check, which is killed if it takes too long
    try:
        transport = _connect(rank, count, port, device, library, timeout_s)
        for name, value in cases(transport):
            results.put((rank, name, value))
        transport.barrier()
    except BaseException:
        lines = [line for line in traceback.format_exc().splitlines() if line.strip()]
        results.put((rank, "error", "\n".join(lines[-_LAST_WORDS:])))
    results.put((rank, _END, None))
    os._exit(0)


def _connect(rank: int, count: int, port: int, device: torch.device, library: str, timeout_s: float) -> Transport:
    torch.set_num_threads(1)
    few_algorithms()
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"}
    if is_gpu(device):
        several = visible_gpus() >= count
        device = torch.device("cuda", rank if several else 0)
        torch.cuda.set_device(device)
        if not several:
            os.environ |= {**_SHARED_GPU, "NCCL_HOSTID": f"rank{rank}"}
    limit = timedelta(seconds=_LIMIT_S)
    store = dist.TCPStore("127.0.0.1", port, timeout=limit, wait_for_workers=False)  # type: ignore[attr-defined]
    options: dict[str, Any] = {"device_id": device} if library == "nccl" else {}
    dist.init_process_group(
        library, store=store, rank=rank, world_size=count, timeout=timedelta(seconds=timeout_s), **options
    )
    world = World.even(2, count // 2) if count % 2 == 0 else World.even(1, count)
    return Transport(library, Identity("none", rank, count, rank, count), world, device, timeout_s)
