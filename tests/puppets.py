"""A parameter server in a thread of the test, and workers that push what the test says, when it says so."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from firetrain.cluster import Identity, World
from firetrain.config import Loaded, load_config
from firetrain.data.order import steps_per_epoch
from firetrain.models.catalogue import make_model
from firetrain.parallel.catalogue import replicate
from firetrain.parallel.shard import shard_bounds
from firetrain.records import Run
from firetrain.training import server_roles
from firetrain.training.server_roles import ServerRoles
from firetrain.transport.meeting import Meeting
from firetrain.transport.messages import Header, Line
from firetrain.transport.transport import Transport

# plain gradient descent at a constant rate, so that a test can do the arithmetic
PLAIN = (
    "model.name=lenet", "optimizer.momentum=0", "optimizer.weight_decay=0", "learning_rate.base=0.125",
    "learning_rate.warmup_epochs=0", "learning_rate.schedule=constant", "target.top1=null", "log.every_steps=1",
    "cluster.timeout_s=20", "batch.global_size=48", "checkpoint.every_epochs=1",
)  # fmt: skip
RATE = 0.125


_MAKING = threading.Lock()


def _made_one_by_one(*arguments: Any) -> torch.nn.Module:
    """Models are made from torch's global random numbers, which the servers share here: they are threads of one process."""
    with _MAKING:
        return replicate(*arguments)


class Puppet:
    """A worker of a run: it holds `weights`, as it has pulled them last."""

    def __init__(self, meeting: Meeting, rank: int, sizes: Sequence[int], statistics: int, servers: int) -> None:
        mine = Meeting(Identity("none", rank, meeting.identity.world_size), meeting.host, meeting.store, 20)
        self._bounds = shard_bounds(sizes, servers)
        self._lines: list[Line] = [mine.line_to(number) for number in reversed(range(servers))][::-1]
        self._held = torch.zeros(statistics + sum(sizes))
        self._before = statistics
        self._lines[0].send({"host": f"host-{rank}", "opening_s": 0.0})
        self.task: Header = {}

    @property
    def weights(self) -> Tensor:
        return self._held[self._before :]

    @property
    def statistics(self) -> Tensor:
        return self._held[: self._before]

    def pull(self, limit_s: float = 90.0) -> Header:
        """Wait for the weights; returns the server's header. TimeoutError after the limit."""
        self._lines[0]._socket.settimeout(limit_s)
        while "works" in (task := self._lines[0].receive(self._part(0))):
            pass
        self.task = task
        for number in range(1, len(self._lines) if "stop" not in self.task else 0):
            self._lines[number].receive(self._part(number))
        if "stop" in self.task:
            self.leave()
        return self.task

    def push(self, value: float | Tensor, *, images: int = 16, loss: float = 1.0, statistics: float = 0.0) -> None:
        """Push a gradient: the same number for every weight, or a tensor."""
        held = torch.full_like(self._held, statistics)
        held[self._before :] = value
        before, self._held = self._held, held
        for number in reversed(range(1, len(self._lines))):
            self._lines[number].send({}, self._part(number))
        header = {
            "stamp": self.task["stamp"],
            "loss": loss,
            "images": images,
            "bad": [],
            "seconds": {"compute_s": 0.001},
        }
        self._lines[0].send(header, self._part(0))
        self._held = before

    def say(self, header: Header) -> None:
        self._lines[0].send(header)

    def leave(self) -> None:
        for line in self._lines:
            line.close()

    def _part(self, number: int) -> Tensor:
        first, end = self._bounds[number]
        return self._held[self._before + first if number else 0 : self._before + end]


@dataclass
class Theatre:
    """A run whose servers are threads of this process. `error`: what rank 0 raised, after `end`."""

    loaded: Loaded
    run: Run
    meeting: Meeting
    error: BaseException | None = None
    _threads: list[threading.Thread] = field(default_factory=list)

    @classmethod
    def open(cls, strategy: str, ranks: int, *overrides: str, run: Run | None = None) -> Theatre:
        """Start the servers of a run with this strategy; a new run, or a further attempt of `run`."""
        chosen = [*PLAIN, *overrides, f"strategy.name=parameter-server:{strategy}", f"cluster.ranks_per_node={ranks}"]
        loaded = load_config("quickstart", chosen)
        if run is None:
            run = Run.create(Path("results"), loaded, datetime.now(timezone.utc), {"ranks": ranks, "hosts": []})
        else:
            run.begin_attempt()
        store = dist.HashStore()
        store.set_timeout(timedelta(seconds=20))
        one = cls(loaded, run, Meeting(Identity("none", 0, ranks), "127.0.0.1", store, 20))
        one._start()
        return one

    def puppets(self, statistics: int = 0) -> list[Puppet]:
        """All workers of the run, connected."""
        return [self.puppet(number, statistics) for number in range(self.workers)]

    def puppet(self, worker: int, statistics: int = 0) -> Puppet:
        return Puppet(self.meeting, self.servers + worker, self._sizes(), statistics, self.servers)

    def work(self, worker: int) -> None:
        """Be a worker that trains, until the run has ended."""
        self._serve(self.servers + worker)

    @property
    def servers(self) -> int:
        strategy = self.loaded.config.strategy.servers
        assert strategy is not None
        return strategy.servers

    @property
    def workers(self) -> int:
        return self.meeting.identity.world_size - self.servers

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(1437, self.loaded.config.batch.global_size)

    def end(self) -> BaseException | None:
        """Wait for the end of all servers; returns what rank 0 raised."""
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive(), "a server has not ended"
        return self.error

    def facts(self) -> dict[str, Any]:
        """What the server has counted; the run must be complete."""
        found: dict[str, Any] = self.run.summary()["reduction"]
        return found

    def _start(self) -> None:
        server_roles.replicate = _made_one_by_one  # type: ignore[attr-defined]
        for rank in range(self.servers):
            self._threads.append(threading.Thread(target=self._serve, args=(rank,), daemon=True))
            self._threads[-1].start()

    def _serve(self, rank: int) -> None:
        config, strategy = self.loaded.config, self.loaded.config.strategy.servers
        assert strategy is not None
        alone = Transport("gloo", Identity(), World.even(1, 1), torch.device("cpu"), config.cluster.timeout_s)
        identity = Identity("none", rank, self.meeting.identity.world_size)
        meeting = Meeting(identity, "127.0.0.1", self.meeting.store, config.cluster.timeout_s)
        try:
            ServerRoles(config, strategy, self.run, meeting, alone, [self.run.stop_mark]).train()
        except BaseException as error:
            if rank == 0:
                self.error = error

    def _sizes(self) -> list[int]:
        with _MAKING:
            return [one.numel() for one in make_model(self.loaded.config.model, 10, 1).parameters()]
