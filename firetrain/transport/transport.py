"""Connected ranks and their small collectives, over torch.distributed with Gloo (CPU) or NCCL (GPU)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _world as groups_of_this_process

from firetrain.cluster import Identity, World
from firetrain.transport.device import is_gpu, synchronize
from firetrain.transport.lost_peers import lost_peers
from firetrain.transport.queue import Queue
from firetrain.transport.tcp import Connections, bytes_of, own_address
from firetrain.transport.watchdog import Collective, Watchdog


@dataclass(frozen=True, eq=False)
class Transport:
    """Connected ranks: all ranks of a run, or a subgroup of them.

    - `name`: gloo or nccl.
    - `identity`: this process in the run.
    - `world`: the ranks of this transport and their nodes.
    - `device`: the device of this rank.
    - `timeout_s`: longest time to wait for another rank, in seconds.
    - `meeting_host`: host of the run's rank 0. `store`: through which the ranks met; None if there is only one.
    - `at_close`: callbacks to run before disconnecting.
    - `members`: number of each rank in the run, ascending; empty if these are all ranks of the run.
    - `group`: process group of a subgroup, or of ranks that a script connected; default: torch's default group. `leave_group`:
      what `close` calls in place of destroying it.
    - `whole`: for a subgroup, the transport of all ranks of the run.

    `rendezvous.connect` makes it for several ranks; a single rank needs no rendezvous:

    >>> alone = Transport("gloo", Identity(), World.even(nodes=1, ranks_per_node=1), torch.device("cpu"), timeout_s=60.0)
    >>> alone.rank, alone.size, alone.sum(torch.ones(2))
    (0, 1, tensor([1., 1.]))
    """

    name: str
    identity: Identity
    world: World
    device: torch.device
    timeout_s: float
    meeting_host: str = "127.0.0.1"
    store: Any = None
    at_close: list[Callable[[], None]] = field(default_factory=list)
    members: tuple[int, ...] = ()
    group: dist.ProcessGroup | None = None
    leave_group: Callable[[], None] | None = None
    whole: Transport | None = None

    @cached_property
    def rank(self) -> int:
        """The number of this rank in this transport, from 0 to size - 1."""
        return self.members.index(self.identity.rank) if self.members else self.identity.rank

    @property
    def on_nccl(self) -> bool:
        """Whether the ranks communicate over NCCL: on GPUs, and in the same order on all ranks."""
        return self.name == "nccl"

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.world.size

    def number_of(self, rank: int) -> int:
        """The number in the run of `rank` of this transport."""
        return self.members[rank] if self.members else rank

    @cached_property
    def _names(self) -> str:
        return f"ranks {', '.join(map(str, self.members))}" if self.members else "all ranks"

    def subgroup(self, ranks: Sequence[int]) -> Transport | None:
        """The transport of `ranks` (ascending); None on other ranks. Collective over all ranks of the run.

        It has a separate process group, also if `ranks` are all ranks. ValueError if `ranks` do not ascend, because torch's
        process groups are always in ascending order.
        """
        if list(ranks) != sorted(set(ranks)):
            raise ValueError(f"the ranks of a subgroup must ascend (ranks: {list(ranks)})")
        members = tuple(self.number_of(rank) for rank in ranks)
        with self.waiting("the creation of a process group"):
            group = dist.new_group(list(members), timeout=timedelta(seconds=self.timeout_s))
        if not self.on_nccl:
            self.connections  # noqa: B018 made here by a collective call of all ranks, before only some ranks use them
        if self.rank not in ranks:
            return None
        world = World.from_labels([self.world.node_of[rank] for rank in ranks])
        return replace(self, world=world, members=members, group=group, leave_group=None, whole=self.whole or self)

    def sum(self, values: Tensor) -> Tensor:
        """Sum a small tensor elementwise over all ranks, in place; the result has the same bits on all ranks."""
        if self.size > 1:
            self._complete(f"a sum over {self._names}", dist.all_reduce, values)
        return values

    def gather(self, values: Tensor) -> list[Tensor]:
        """The small tensors of all ranks, which must have the same shape, in rank order."""
        if self.size == 1:
            return [values]
        gathered = [torch.empty_like(values) for _ in range(self.size)]
        self._complete(f"a gather over {self._names}", dist.all_gather, gathered, values)
        return gathered

    def broadcast(self, values: Tensor) -> Tensor:
        """Replace the content of a tensor by that of rank 0, in place."""
        if self.size > 1:
            self._complete(f"a broadcast from rank {self.number_of(0)}", dist.broadcast, values, self.number_of(0))
        return values

    def broadcast_object(self, value: Any) -> Any:
        """The small Python object that rank 0 passes; the same on all ranks."""
        if self.size == 1:
            return value
        box = [value]
        with self.waiting(f"a broadcast from rank {self.number_of(0)}"):
            dist.broadcast_object_list(box, self.number_of(0), group=self.group)
        return box[0]

    def gather_objects(self, value: Any) -> list[Any]:
        """The small Python objects of all ranks, in rank order."""
        values: list[Any] = [value] * self.size
        if self.size > 1:
            with self.waiting(f"a gather over {self._names}"):
                dist.all_gather_object(values, value, group=self.group)
        return values

    def barrier(self) -> None:
        """Wait until all ranks have made this call."""
        self.sum(torch.zeros(1, device=self.device))
        with self.waiting("a barrier"):
            synchronize(self.device)  # NCCL makes only the device's stream wait, not the host

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Context manager for communication for which the host waits. If a rank is lost: LostPeer; on NCCL the process ends."""
        with lost_peers(self.identity.rank, what), self.watchdog.during(what) if self.on_nccl else nullcontext():
            yield

    def _complete(self, what: str, collective: Callable[..., Any], *arguments: Any) -> None:
        """Call a collective of torch.distributed. On NCCL the host does not wait, but the watchdog does."""
        with lost_peers(self.identity.rank, what):
            work = collective(*arguments, group=self.group, async_op=True)
            if is_gpu(self.device):
                self.watchdog.watch(Collective(work), lambda: what)
            work.wait()

    def exchange(self, send: tuple[int, Tensor] | None, receive: tuple[int, Tensor] | None) -> None:
        """Send to one rank and receive from one rank simultaneously, over the connections that plans use.

        Ranks are numbered as in the run and must be connected (`connect_to`).
        """
        if self.on_nccl:
            operations = [dist.P2POp(dist.irecv, receive[1], receive[0], self.group)] if receive else []
            operations += [dist.P2POp(dist.isend, send[1], send[0], self.group)] if send else []
            for work in dist.batch_isend_irecv(operations):
                work.wait()
        else:
            self.connections.exchange(
                send and (send[0], bytes_of(send[1])),
                receive and (receive[0], bytes_of(receive[1])),
            )

    @property
    def queue(self) -> Queue:
        """The queue that executes plans on the CPU."""
        return (self.whole or self)._queue

    @property
    def connections(self) -> Connections:
        """The TCP connections with which plans are executed on the CPU.

        The first access is a collective call of all ranks of the run.
        """
        return (self.whole or self)._connections

    @property
    def watchdog(self) -> Watchdog:
        """Ends the process if work on the GPU waits for a lost rank."""
        return (self.whole or self)._watchdog

    def connect_to(self, peers: Collection[int]) -> None:
        """Open the connections of this rank to `peers`, numbered as in the run.

        Collective call; both ranks of a pair must request the connection. No-op on NCCL, which opens connections itself.
        """
        if self.on_nccl:
            return
        addresses = self.gather_objects(self.connections.address)
        by_rank = dict(zip(self.members or range(self.size), addresses, strict=True))
        with lost_peers(self.identity.rank, f"connections to ranks {sorted(peers)}"):
            self.connections.connect(peers, by_rank)

    def close(self, *, is_broken: bool = False) -> None:
        """Close all connections, and leave the process group. `is_broken`: ranks of it have been lost."""
        for leave in self.at_close:
            leave()
        for name in ("_queue", "_connections"):
            if name in self.__dict__:
                getattr(self, name).close()
        with self.waiting("the end of all ranks"):
            if self.leave_group is None:
                destroy(self.group)
            elif not is_broken:
                self.leave_group()
        if "_watchdog" in self.__dict__:
            self._watchdog.close()

    @cached_property
    def _queue(self) -> Queue:
        return Queue()

    @cached_property
    def _watchdog(self) -> Watchdog:
        return Watchdog(self.identity.rank, self.timeout_s, self.device)

    @cached_property
    def _connections(self) -> Connections:
        address = own_address(self.meeting_host, len(self.world.nodes) == 1)
        secret = self.broadcast_object(secrets.token_bytes(16))
        return Connections(self.identity.rank, self.timeout_s, address, self.meeting_host, secret)


def destroy(group: dist.ProcessGroup | None) -> None:
    """Destroy a process group, or all of them; nothing if the script has done so."""
    if dist.is_initialized() and (group is None or group in groups_of_this_process.pg_map):
        dist.destroy_process_group(group)


def own_group(transport: Transport) -> dist.ProcessGroup:
    """The process group of a subgroup, or a new one of all ranks. Collective over the ranks of `transport`."""
    group = transport.group or cast(Transport, transport.subgroup(range(transport.size))).group
    return cast(dist.ProcessGroup, group)
