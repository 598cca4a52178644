"""Are the nodes of a job fit to train? Asked on all of them at once, before the ranks start."""

from __future__ import annotations

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
    try:
        transport = connect(identity, "auto", limit_s)
    except FiretrainError as error:
        return f"{host} (rank {identity.rank}): {error}; {advice}"
    device = transport.device
    total = transport.sum(torch.tensor([float(transport.rank + 1)], device=device)).item()
    if total != transport.size * (transport.size + 1) / 2:
        return f"{host} (rank {identity.rank}): a sum over all ranks came out as {total:g}; {advice}"
    transport.barrier()
    mine = torch.tensor([time.time(), float(device.type == "cuda")], dtype=torch.float64, device=device)
    clocks, on_gpu = torch.stack(transport.gather(mine)).T.tolist()
    median = sorted(clocks)[len(clocks) // 2]
    transport.close()
    if abs(clocks[identity.rank] - median) > _MOST_SKEW_S:
        return f"{host} (rank {identity.rank}): its clock is {clocks[identity.rank] - median:+.1f} s off the others'; {advice}"
    if not on_gpu[identity.rank] and any(on_gpu):
        return f"{host} (rank {identity.rank}): torch sees no GPU here, but on other nodes; {advice}"
    return None
