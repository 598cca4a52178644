"""Attaches to the ranks of a process group that a script of the user has made."""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _world as groups_of_this_process

from firetrain.cluster import Identity, World, identify
from firetrain.errors import UserError
from firetrain.transport.lost_peers import lost_peers
from firetrain.transport.transport import Transport

# groups of some ranks whose transports have been closed, by ranks, backend and timeout: torch would give a new group the name of
# one that was destroyed, and ranks would meet at addresses that are no more
_left: dict[tuple[Any, ...], list[dist.ProcessGroup]] = defaultdict(list)
# in how many groups this process was when it made the newest one of some ranks
_newest = 0


def attach(group: dist.ProcessGroup | None = None, timeout_s: float = 300.0) -> Transport:
    """The transport of the ranks of `group`; default: all ranks of the default process group.

    It communicates through a process group of its own, so that collectives of the script cannot come between; closing it leaves
    those of the script as they are. Before some ranks make one, they exchange three numbers in `group`. The device is the current
    GPU if `group` communicates over NCCL, else the CPU. Collective over the ranks of `group`. UserError if there is no process
    group, if this is none, or if this rank is not in `group`.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise UserError(
            "torch.distributed has no process group yet: call torch.distributed.init_process_group before this"
        )
    outside: Any = dist.GroupMember.NON_GROUP_MEMBER  # what torch gives to ranks for which it has made no group
    if group is not None and group is not outside and not isinstance(group, dist.ProcessGroup):
        raise UserError(f"group must be a process group of torch.distributed (got {group!r})")
    if group is outside or dist.get_rank(group) < 0:
        raise UserError(f"rank {dist.get_rank()} is not in the process group: only its ranks may make this call")
    ranks = sorted(dist.get_process_group_ranks(group or dist.group.WORLD))
    identity, whole = _identity(), len(ranks) == dist.get_world_size()
    device = _device(group)
    name = "nccl" if device.type == "cuda" else "gloo"
    labels: list[Any] = [None] * len(ranks)
    with lost_peers(identity.rank, "the creation of a process group"):
        limit = timedelta(seconds=timeout_s)
        own = dist.new_group(ranks, timeout=limit, backend=name) if whole else _of_some(ranks, name, limit, group)
        dist.all_gather_object(labels, (socket.gethostname(), identity.node), group=own)
    return Transport(
        name, identity, World.from_labels(labels), device, timeout_s,
        meeting_host=os.environ.get("MASTER_ADDR", labels[0][0]), members=() if whole else tuple(ranks), group=own,
        leave_group=None if whole else partial(_left[tuple(ranks), name, limit].append, own),
    )  # fmt: skip


def _of_some(ranks: list[int], backend: str, limit: timedelta, group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """A process group of some ranks, which are those of `group`: one that all of them have left, or a new one.

    torch names a group that only its ranks make by the number of groups that a rank is in; ranks with other names would wait,
    and a name must not come again. So this rank makes groups of itself alone, until it is in as many as each other rank, and in
    more than when it made the newest one of some ranks.
    """
    global _newest
    names, left = groups_of_this_process.pg_names, _left[tuple(ranks), backend, limit]
    # the script may have destroyed all; ranks may have closed them in different orders
    left[:] = sorted((one for one in left if one in groups_of_this_process.pg_map), key=names.__getitem__)
    known = crc32("".join(names[one] for one in left).encode())
    mine = torch.tensor([len(left), known, max(len(names), _newest + 1)], device=_device(group))
    every = [torch.empty_like(mine) for _ in ranks]
    dist.all_gather(every, mine, group=group, async_op=True).wait(limit)
    found = torch.stack(every)
    if left and bool((found[:, :2] == mine[:2]).all()):
        return left.pop(0)
    for _ in range(int(found[:, 2].max()) - len(names)):
        dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)
    _newest = len(names)
    made: dist.ProcessGroup = dist.new_group(ranks, timeout=limit, backend=backend, use_local_synchronization=True)
    return made


def _identity() -> Identity:
    """This rank in the default process group; the launcher's variables tell more, if they agree with it."""
    with suppress(UserError):
        found = identify()
        if (found.rank, found.world_size) == (dist.get_rank(), dist.get_world_size()):
            return found
    return Identity("torch.distributed", dist.get_rank(), dist.get_world_size())


def _device(group: dist.ProcessGroup | None) -> torch.device:
    if torch.cuda.is_available() and "nccl" in dist.get_backend_config(group):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
