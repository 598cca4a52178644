"""Real ranks for tests: processes that are connected over loopback in the same way as by firetrain's launcher."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from network import Network

from firetrain.cluster import Identity

processes = multiprocessing.get_context("forkserver")
# the fork server imports torch once, and forks ranks in milliseconds
processes.set_forkserver_preload(["torch._dynamo", "torch.distributed", "firetrain.training.setup"])
_BEGIN_S = 60


def on_ranks(
    count: int,
    function: Callable[..., Any],
    *arguments: Any,
    nodes: int = 1,
    timeout_s: float = 60,
    limit_s: float = 180,
    network: Network | None = None,
    doomed: int | None = None,
) -> list[Any]:
    """The results of `function(transport, *arguments)` on `count` ranks; AssertionError with the first traceback.

    They are connected over loopback, or each is on its node of a `network`. The rank `doomed` is expected to die; its result is
    None.
    """
    with tempfile.TemporaryDirectory() as folder:
        pipes, ranks, all_begin = [], [], processes.Barrier(count)
        for rank in range(count):
            ours, theirs = processes.Pipe()
            node = rank * nodes // count
            identity = Identity("test", rank, count, rank, count, node)
            process = processes.Process(
                target=_rank,
                args=(
                    theirs,
                    all_begin,
                    identity,
                    str(Path(folder) / "meeting"),
                    timeout_s,
                    network,
                    function,
                    arguments,
                ),
                daemon=True,
            )
            process.start()
            theirs.close()
            pipes.append(ours)
            ranks.append(process)
        try:
            return [_receive(rank, pipe, limit_s, rank == doomed) for rank, pipe in enumerate(pipes)]
        finally:
            for process in ranks:
                process.kill()
                process.join()


def _rank(
    pipe: Connection,
    all_begin: Barrier,
    identity: Identity,
    meeting: str,
    timeout_s: float,
    network: Network | None,
    function: Callable[..., Any],
    arguments: Any,
) -> None:
    import torch

    from firetrain.transport.rendezvous import RENDEZVOUS, RENDEZVOUS_HOST, connect

    os.environ |= {RENDEZVOUS: meeting, "GLOO_SOCKET_IFNAME": "lo"}
    if network:
        network.enter(int(identity.node))
        os.environ |= {RENDEZVOUS_HOST: network.address(0), "GLOO_SOCKET_IFNAME": "eth0"}
    torch.set_num_threads(1)
    try:
        all_begin.wait(_BEGIN_S)  # so that a short time limit is not spent on the start of the others
        transport = connect(identity, "gloo", timeout_s)
        pipe.send((True, function(transport, *arguments)))
        transport.barrier()
        for leave in transport.at_close:
            leave()
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    finally:
        pipe.close()
        os._exit(0)


def _receive(rank: int, pipe: Connection, limit_s: float, doomed: bool) -> Any:
    if not pipe.poll(limit_s):
        raise AssertionError(f"rank {rank} did not answer within {limit_s} s")
    try:
        good, value = pipe.recv()
    except EOFError:
        if doomed:
            return None
        raise AssertionError(f"rank {rank} died without a word") from None
    assert good, f"rank {rank}:\n{value}"
    return value
