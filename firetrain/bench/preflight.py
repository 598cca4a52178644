"""Check all nodes of a job before the ranks start."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from firetrain import __version__
from firetrain.cluster import Identity
from firetrain.data.layout import fault_of
from firetrain.errors import FiretrainError
from firetrain.transport.agreement import gather_texts
from firetrain.transport.device import visible_gpus
from firetrain.transport.lost_peers import lost_peers
from firetrain.transport.rendezvous import connect, meet
from firetrain.words import counted

_MOST_SKEW_S = 5.0


@dataclass(frozen=True)
class Expected:
    """What a job expects of a node: GPUs, a network interface, datasets with their folders, and a version of firetrain."""

    gpus: int = 0
    interface: str | None = None
    data: Sequence[tuple[str, str]] = ()
    version: str = ""


def preflight(identity: Identity, limit_s: float, expected: Expected) -> str | None:
    """The problems of this rank's node, with its name and advice; None if no node has any. Collective call.

    If only other nodes have problems, their ranks report them, and this result is an empty string. Checks `expected`; that ranks
    can connect within `limit_s` and compute a correct sum; that all ranks or none have a GPU; that clocks agree within seconds.
    """
    host = socket.gethostname()
    advice = f"exclude the node (--exclude {host}) or have it checked"
    who = f"{host} (rank {identity.rank})"
    wrong = "\n".join(f"{who}: {text}" for text in lacking(expected, host))
    if identity.world_size == 1:
        return wrong or None
    if not identity.is_first and (reason := _unreachable(limit_s / 2)):
        return f"{wrong}\n{who}: cannot reach rank 0 at {os.environ['MASTER_ADDR']}: {reason}; {advice}".lstrip()
    try:
        meeting = meet(identity, limit_s)
        with lost_peers(identity.rank, "the check of all nodes"):
            if any(gather_texts(meeting[1], identity, "unfit", wrong)):
                return wrong
        transport = connect(identity, "auto", limit_s, meeting=meeting)
    except FiretrainError as error:
        return f"{wrong}\n{who}: not all ranks connected: {error}".lstrip()
    device = transport.device
    total = transport.sum(torch.tensor([float(transport.rank + 1)], device=device)).item()
    if total != transport.size * (transport.size + 1) / 2:
        return f"{who}: a sum over all ranks gave the wrong result {total:g}; {advice}"
    transport.barrier()
    now = torch.tensor([time.time()], dtype=torch.float64, device=device)
    clocks = torch.cat(transport.gather(now)).tolist()
    median = sorted(clocks)[len(clocks) // 2]
    transport.close()
    if abs(clocks[identity.rank] - median) > _MOST_SKEW_S:
        return f"{who}: its clock differs by {clocks[identity.rank] - median:+.1f} s from the median of all ranks; {advice}"
    return None


def lacking(expected: Expected, host: str) -> Iterator[str]:
    """The problems of this node, each with the option or setting that helps."""
    exclude = f"exclude the node (--exclude {host})"
    if expected.version and expected.version != __version__:
        yield (
            f"firetrain {__version__} is installed on this node, but the job was submitted by {expected.version}: install that "
            f"version, or {exclude}"
        )
    interfaces = [name for _, name in socket.if_nameindex()]
    if expected.interface and expected.interface not in interfaces:
        yield (
            f"no network interface {expected.interface} on this node (it has {', '.join(interfaces)}): set the site's interface "
            f"to one that all nodes have, or {exclude}"
        )
    if expected.gpus and (visible := _gpus_of_job()) < expected.gpus:
        yield (
            f"torch sees {visible} of {counted(expected.gpus, 'GPU')} that this node needs, one per rank: {exclude}, "
            "lower --ranks-per-node, or set the site's gpus.request to none"
        )
    for name, root in expected.data:
        if wrong := fault_of(name, Path(root)):
            yield f"data.root: {wrong}: set it to a folder that has the images on all nodes, or {exclude}"


def _gpus_of_job() -> int:
    """The number of GPUs that the job may use on this node; if Slurm gives each task one GPU, those of the whole step."""
    own = visible_gpus()
    of_step = os.environ.get("SLURM_STEP_GPUS", "")
    return len(of_step.split(",")) if own == 1 and of_step else own


def _unreachable(limit_s: float) -> str | None:
    """Why rank 0 cannot be reached within `limit_s`; None if it can. Retries, because rank 0 may not listen yet."""
    deadline = time.monotonic() + limit_s
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    while True:
        try:
            socket.create_connection(address, timeout=max(1.0, deadline - time.monotonic())).close()
        except OSError as error:
            if time.monotonic() > deadline:
                return error.strerror or str(error)
            time.sleep(0.2)
        else:
            return None
