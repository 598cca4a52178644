"""Are the nodes of a job fit to train? Asked on all of them at once, before the ranks start."""

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
from firetrain.config.files import why_unreadable
from firetrain.errors import FiretrainError
from firetrain.reduction.transport import connect

_MOST_SKEW_S = 5.0


@dataclass(frozen=True)
class Expected:
    """What a job takes for granted of its nodes: GPUs for its ranks, a network interface, folders of images, this firetrain."""

    gpus: int = 0
    interface: str | None = None
    data: Sequence[str] = ()
    version: str = ""


def preflight(identity: Identity, limit_s: float, expected: Expected) -> str | None:
    """What is wrong with this rank's node, naming it, and what to do; None if nothing is. All ranks call it together.

    Checked: what is `expected`; that the ranks reach each other within `limit_s` and sum right; that a rank has a GPU wherever
    its neighbours have one; that clocks agree to a few seconds.
    """
    host = socket.gethostname()
    advice = f"leave the node out (--exclude {host}) or have it looked at"
    who = f"{host} (rank {identity.rank})"
    if wrong := list(lacking(expected, host)):
        return "\n".join(f"{who}: {text}" for text in wrong)
    if identity.world_size == 1:
        return None
    if not identity.is_first and (reason := _unreachable(limit_s / 2)):
        return f"{who}: cannot reach rank 0 at {os.environ['MASTER_ADDR']}: {reason}; {advice}"
    try:
        transport = connect(identity, "auto", limit_s)
    except FiretrainError as error:
        return f"{who}: not all ranks came: {error}"
    device = transport.device
    total = transport.sum(torch.tensor([float(transport.rank + 1)], device=device)).item()
    if total != transport.size * (transport.size + 1) / 2:
        return f"{who}: a sum over all ranks came out as {total:g}; {advice}"
    transport.barrier()
    mine = torch.tensor([time.time(), float(device.type == "cuda")], dtype=torch.float64, device=device)
    clocks, on_gpu = torch.stack(transport.gather(mine)).T.tolist()
    median = sorted(clocks)[len(clocks) // 2]
    transport.close()
    if abs(clocks[identity.rank] - median) > _MOST_SKEW_S:
        return f"{who}: its clock is {clocks[identity.rank] - median:+.1f} s off the others'; {advice}"
    if not on_gpu[identity.rank] and any(on_gpu):
        return f"{who}: torch sees no GPU here, but on other nodes; {advice}"
    return None


def lacking(expected: Expected, host: str) -> Iterator[str]:
    """What this node lacks of what is expected, each with the setting or option that helps."""
    exclude = f"--exclude {host} leaves the node out"
    if expected.version and expected.version != __version__:
        yield (
            f"firetrain {__version__} is installed here, and the job was submitted by {expected.version}: install that here, or "
            f"{exclude}"
        )
    interfaces = [name for _, name in socket.if_nameindex()]
    if expected.interface and expected.interface not in interfaces:
        yield (
            f"no network interface {expected.interface} here (there are {', '.join(interfaces)}): set the site's interface to "
            f"one that all nodes have, or {exclude}"
        )
    if expected.gpus and (visible := _visible_gpus()) < expected.gpus:
        yield (
            f"torch sees {visible} GPUs here, and {expected.gpus} ranks need one each: {exclude}, lower --ranks-per-node, or set "
            "the site's gpus.request to none"
        )
    for root in expected.data:
        if wrong := why_unreadable(Path(root)):
            yield f"data.root: {wrong}: set it to a folder that all nodes see, or {exclude}"


def _visible_gpus() -> int:
    """The node's GPUs that this job may use: where Slurm shows each task one of its own, those of the whole step."""
    own = torch.cuda.device_count()
    of_step = os.environ.get("SLURM_STEP_GPUS", "")
    return len(of_step.split(",")) if own == 1 and of_step else own


def _unreachable(limit_s: float) -> str | None:
    """Why rank 0 cannot be reached, within a time in which it should have begun to listen; None if it can."""
    deadline = time.monotonic() + limit_s
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    while True:
        try:
            socket.create_connection(place, timeout=max(1.0, deadline - time.monotonic())).close()
        except OSError as error:
            if time.monotonic() > deadline:
                return error.strerror or str(error)
            time.sleep(0.2)
        else:
            return None
