"""A server beside rank 0 tells the lives of a worker apart that dies and is started again."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread

import pytest
import torch
from torch import Tensor, nn

from firetrain.parallel.shard import UpdatedShard
from firetrain.training.shards import ShardLoop
from firetrain.transport.hub import Hub
from firetrain.transport.messages import Line

WORKER, RATE = 3, 0.5


class Served:
    """A second server, in a thread, with rank 0's line to it."""

    def __init__(self) -> None:
        self.hub = Hub("127.0.0.1", "", 10.0)
        model = nn.Linear(3, 2)
        self.shard = UpdatedShard(model, torch.optim.SGD(model.parameters(), lr=RATE))
        self.before = self.shard.weights.clone()
        self.thread = Thread(target=ShardLoop(1, self.shard, self.hub, 10.0).run, daemon=True)
        self.thread.start()
        self.rank_0 = Line(0, self.hub.address, 10.0)

    def worker(self, life: str) -> Line:
        line = Line(WORKER, self.hub.address, 10.0)
        line.send({"life": life})
        return line

    def take(self, life: str) -> None:
        self.rank_0.send({"take": [WORKER, life], "factor": 1.0, "update": [1.0, RATE]})

    def sent(self, to: Line, life: str) -> Tensor:
        """The weights that rank 0 lets the server send to a life of the worker."""
        self.rank_0.send({"send": [[WORKER, life]]})
        into = torch.empty_like(self.before)
        to.receive(into)
        return into


@pytest.fixture
def served() -> Iterator[Served]:
    found = Served()
    yield found
    found.rank_0.send({"stop": True})
    found.thread.join(10)
    found.hub.close()
    assert not found.thread.is_alive()


def test_what_a_dead_worker_has_pushed_is_not_taken_for_what_the_next_one_pushes(served: Served) -> None:
    first = served.worker("first")
    first.send({}, torch.ones_like(served.before))  # rank 0 never hears of it
    first.close()
    second = served.worker("second")
    served.take("second")  # before its part has come
    second.send({}, torch.full_like(served.before, 2.0))
    torch.testing.assert_close(served.sent(second, "second"), served.before - RATE * 2)


def test_what_a_dead_worker_has_pushed_counts_if_rank_0_has_its_part_too(served: Served) -> None:
    first = served.worker("first")
    first.send({}, torch.ones_like(served.before))
    first.close()
    second = served.worker("second")
    served.take("first")
    torch.testing.assert_close(served.sent(second, "second"), served.before - RATE)


def test_weights_for_a_dead_worker_are_not_sent_to_the_next_one(served: Served) -> None:
    served.worker("first").close()
    second = served.worker("second")
    served.rank_0.send({"send": [[WORKER, "first"]]})
    second.send({}, torch.ones_like(served.before))
    served.take("second")
    torch.testing.assert_close(served.sent(second, "second"), served.before - RATE)
