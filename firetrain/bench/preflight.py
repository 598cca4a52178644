"""Are the nodes of a job fit to train? Asked on all of them at once, before the ranks start."""

from __future__ import annotations

import os
import socket
import time

import torch

from firetrain.cluster import Identity
from firetrain.errors import FiretrainError
from firetrain.reduction.transport import connect

_MOST_SKEW_S = 5.0


def preflight(identity: Identity, limit_s: float) -> str | None:
    """What is wrong with this rank's node, naming it; None if nothing is. All ranks call it together.

    Checked: that the ranks reach each other within `limit_s` and sum right, that a rank has a GPU wherever its
    neighbours have one, that clocks agree to a few seconds.
    """
    host = socket.gethostname()
    advice = f"leave the node out (--exclude {host}) or have it looked at"
    who = f"{host} (rank {identity.rank})"
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
