"""The shards of a parameter server's weights, and the orders that rank 0 sends to the other servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from firetrain.errors import LostPeer
from firetrain.parallel.batch_norm import load_statistics, statistics
from firetrain.parallel.shard import Order, Shard, Update, UpdatedShard
from firetrain.transport.hub import Arrived, Hub, Left
from firetrain.transport.lost_peers import lost_peers
from firetrain.transport.messages import Header, Line

# the rank of a worker, and which of its lives: a worker that dies is started again
_Life = tuple[int, str]


class Shards:
    """All shards as rank 0 sees them: its own, and those of the other servers, which get every order in the same sequence.

    - `lines`: to the other servers. `bounds`: which weights each server owns, rank 0 first.
    - `statistics`: those of batch norm at the start of this attempt.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        shard: Shard,
        hub: Hub,
        lines: Sequence[Line],
        bounds: Sequence[tuple[int, int]],
    ) -> None:
        self._model, self._optimizer, self._shard, self._hub = model, optimizer, shard, hub
        self._lines, self._bounds = lines, bounds
        self._lives: dict[int, tuple[str, int]] = {}
        self._steps = 0
        self.statistics = statistics(model)

    @property
    def servers(self) -> int:
        """The number of servers."""
        return len(self._bounds)

    def greet(self, worker: int, hello: Arrived) -> None:
        """Note which life of a worker talks to rank 0, and by which connection: one that was started again has others."""
        self._lives[worker] = hello.header.get("life", ""), hello.connection

    def take(self, worker: int, order: Order, values: Tensor) -> None:
        """Do what is ordered with the values of a worker, on all servers. `values`: those of rank 0's part."""
        self._tell({"take": self._life_of(worker), "factor": order.factor, "update": order.update})
        self._shard.take(order, values)

    def send(self, tasks: Mapping[int, Header], mean_statistics: Tensor) -> None:
        """Let all servers send their weights to workers. `tasks`: what rank 0 tells each of them with it."""
        self._tell({"send": [self._life_of(worker) for worker in tasks]})
        values = torch.cat([mean_statistics, self._shard.weights])  # a copy, because updates go on while it is sent
        for worker, task in tasks.items():
            # while rank 0 evaluated, a worker may have been started again: that life gets weights when it is greeted
            self._hub.send(worker + self.servers, task, values, self._lives[worker][1])

    def collected(self) -> Tensor:
        """All weights of the model in one vector."""
        self._steps = self._shard.steps
        for number in range(1, self.servers):
            self._collect(number)
        return self._shard.whole

    def state(self, mean_statistics: Tensor) -> dict[str, Any]:
        """The content of a checkpoint, as data-parallel training has it."""
        self.collected()
        load_statistics(self._model, mean_statistics)
        for group in self._optimizer.param_groups:  # whose parameters may all belong to another server
            if "step" in group and isinstance(self._shard, UpdatedShard):
                group["step"] = self._steps
        return {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def dismiss(self) -> None:
        """Tell the other servers that the run has ended."""
        self._tell({"stop": True})

    def close(self) -> None:
        """Close the connections to the other servers."""
        for line in self._lines:
            line.close()

    def _life_of(self, worker: int) -> _Life:
        return worker + self.servers, self._lives[worker][0]

    def _tell(self, header: Header) -> None:
        with lost_peers(0, "an order to the other parameter servers"):
            for line in self._lines:
                line.send(header)

    def _collect(self, number: int) -> None:
        """Fetch the weights of another server, and its optimiser's values."""
        first, end = self._bounds[number]
        line = self._lines[number - 1]
        with lost_peers(0, f"the collection of the weights of server {number}"):
            line.send({"collect": True})
            header = line.receive(self._shard.whole[first:end])
            self._steps = max(self._steps, header["steps"])
            for key in header["keys"]:
                values = torch.empty(end - first)
                line.receive(values)
                if isinstance(self._shard, UpdatedShard):
                    self._shard.keep_optimizer_state(key, (first, end), values)


class ShardLoop:
    """A server beside rank 0: it owns a shard, and does with it what rank 0 orders.

    - `rank`: its number in the run.
    """

    def __init__(self, rank: int, shard: Shard, hub: Hub, timeout_s: float) -> None:
        self._rank, self._shard, self._hub, self._timeout_s = rank, shard, hub, timeout_s
        self._parts: dict[_Life, Tensor] = {}  # pushed values that wait for rank 0's order
        self._orders: list[Header] = []
        self._lives: dict[int, str] = {}  # of the workers that are connected, by rank
        self._ended: set[_Life] = set()

    def run(self) -> None:
        """Serve until rank 0 says that the run has ended. LostPeer if it is gone."""
        while True:
            for event in self._hub.wait(self._timeout_s):
                if isinstance(event, Left):
                    self._left(event)
                elif isinstance(event, Arrived) and event.rank == 0:
                    self._orders.append(event.header)
                elif isinstance(event, Arrived) and "life" in event.header:
                    self._lives[event.rank] = event.header["life"]
                elif isinstance(event, Arrived):
                    self._parts[event.rank, self._lives[event.rank]] = event.values
                else:
                    self._lives[event.rank] = ""
            while self._orders and self._can(self._orders[0]):
                order = self._orders.pop(0)
                if "stop" in order:
                    return
                self._do(order)

    def close(self) -> None:
        """Close the connections, when the workers have closed theirs."""
        self._hub.part()
        self._hub.close()

    def _left(self, event: Left) -> None:
        if event.rank == 0:
            raise LostPeer(f"rank {self._rank}: rank 0, the first parameter server, has ended ({event.why})")
        self._ended.add((event.rank, self._lives.pop(event.rank, "")))

    def _can(self, order: Header) -> bool:
        """Whether everything has come that an order needs; a worker that has died sends nothing more."""
        if "take" in order:
            taken = _life(order["take"])
            return taken in self._parts or taken in self._ended
        return all(self._is_here(one) or one in self._ended for one in map(_life, order.get("send", ())))

    def _is_here(self, life: _Life) -> bool:
        return self._lives.get(life[0]) == life[1]

    def _do(self, order: Header) -> None:
        if "take" in order:
            values = self._parts.pop(_life(order["take"]), None)
            update = Update(*order["update"]) if order["update"] else None
            factor = 0.0 if values is None else order["factor"]
            self._shard.take(Order(factor, update, ()), self._shard.weights if values is None else values)
        elif "send" in order:
            values = self._shard.weights.clone()
            for one in map(_life, order["send"]):
                # what an earlier life has sent, and no order before this one has named, is not wanted any more
                self._parts = {life: part for life, part in self._parts.items() if life[0] != one[0] or life == one}
                if self._is_here(one):
                    self._hub.send(one[0], {}, values)
        else:
            state = self._shard.optimizer_state() if isinstance(self._shard, UpdatedShard) else {}
            self._hub.send(0, {"keys": list(state), "steps": self._shard.steps}, self._shard.weights.clone())
            for values in state.values():
                self._hub.send(0, {}, values)


def _life(told: Sequence[Any]) -> _Life:
    """A life as JSON has it."""
    return int(told[0]), str(told[1])
