"""The rank that owns the weights under the strategy `parameter-server`: it serves the workers until the run ends."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from firetrain.config import Config
from firetrain.errors import FiretrainError, LostPeer, UserError
from firetrain.optim.learning_rate import LearningRate
from firetrain.parallel.batch_norm import load_statistics
from firetrain.parallel.flat import load_flat
from firetrain.parallel.server import Server
from firetrain.parallel.shard import Order
from firetrain.parallel.tickets import Tickets
from firetrain.parallel.worker import Worker
from firetrain.training.checkpoints import Checkpoints
from firetrain.training.divergence import diverged
from firetrain.training.evaluation import Score, evaluate
from firetrain.training.input import Input
from firetrain.training.log import Log
from firetrain.training.server_ledger import ServerLedger
from firetrain.training.shards import Shards
from firetrain.training.stagnation import Stagnation
from firetrain.training.stop import Stop, Stopped
from firetrain.transport.hub import Arrived, Hub, Left
from firetrain.transport.messages import Header
from firetrain.transport.transport import Transport
from firetrain.words import counted, named


@dataclass
class ServerLoop:
    """Rank 0, made by `ServerRoles`. Workers are numbered from 0; worker w is the rank after all servers and w others.

    - `shards`: the weights, of which rank 0 and perhaps other servers own parts.
    - `evaluator`: a worker of its own, which computes the accuracy.
    - `lost`: how many workers have died, in earlier attempts up to the checkpoint, too. `alive`: the workers that take part.
    """

    config: Config
    workers: int
    transport: Transport
    hub: Hub
    log: Log
    ledger: ServerLedger
    checkpoints: Checkpoints
    stop: Stop
    server: Server
    shards: Shards
    tickets: Tickets
    evaluator: Worker
    input: Input
    schedule: LearningRate
    stagnation: Stagnation
    lost: int = 0
    alive: set[int] = field(default_factory=set)
    _resting: set[int] = field(default_factory=set)  # released, when no share was left
    _hosts: dict[int, str] = field(default_factory=dict)
    _statistics: dict[int, Tensor] = field(default_factory=dict)
    _bad: set[int] = field(default_factory=set)
    _loss: list[float] = field(default_factory=lambda: [0.0, 0.0])  # of the steps since the last line: sum, images
    _losses: list[float] = field(default_factory=list)  # of an epoch's lines
    _evaluation_due: bool = False
    _checkpoint_due: bool = False
    _stopping: bool = False
    _score: Score | None = None
    _over: bool = False

    def run(self) -> dict[str, Any]:
        """Serve to the target or the limit; returns the summary, as `Training.run` does. Stopped if the run was asked to end."""
        self.ledger.first_step()
        self._over = self.tickets.used >= self.tickets.total  # otherwise only the last evaluation is missing
        self._release(range(self.workers))
        while not self._over:
            self._next_events()
        return self._end()

    def dismiss(self) -> None:
        """Tell all workers, and the other servers, that the run has ended."""
        for rank in self.hub.ranks:
            self.hub.send(rank, {"stop": True})
        self.shards.dismiss()
        self.hub.part()

    def close(self) -> None:
        """End the threads, and close the connections."""
        self.hub.close()
        self.shards.close()
        self.input.close()
        self.evaluator.close()
        self.log.close()

    @property
    def hosts(self) -> list[str]:
        """The hosts of the workers, in their order."""
        return [self._hosts[worker] for worker in sorted(self._hosts)]

    @property
    def facts(self) -> dict[str, Any]:
        """What the server has counted, for the run's record."""
        return {"name": str(self.config.strategy.spec), **self.server.facts(), "workers_lost": self.lost}

    def assemble(self) -> None:
        """Wait for the first message of all workers, before `run`. LostPeer if they do not come in time."""
        while len(self.alive) < self.workers:
            events = self.hub.wait(self.transport.timeout_s, in_touch=True)
            if not events:
                missing = named(sorted(set(range(self.workers)) - self.alive), "worker")
                raise LostPeer(f"{missing} did not connect within {self.transport.timeout_s:g} s")
            for event in events:
                worker = event.rank - self.shards.servers
                if isinstance(event, Left):
                    self.alive.discard(worker)  # until it is started again
                    self.log.warn(text := f"{named([worker], 'worker')} has ended before the first step: {event.why}")
                    if not self.server.policy.goes_on:
                        raise LostPeer(text)
                if isinstance(event, Arrived):
                    self._refuse_error(event.header)
                    self.alive.add(worker)
                    self._hosts[worker] = event.header["host"]
                    self.ledger.greet(event.header["opening_s"])
                    self.shards.greet(worker, event)

    def _next_events(self) -> None:
        events = self.hub.wait(self.transport.timeout_s, in_touch=True)
        if not events:
            self._part_from_silent()
        for event in events:
            worker = event.rank - self.shards.servers
            if isinstance(event, Left) and not self._over:
                self._lose(worker, event.why)
            elif isinstance(event, Arrived) and not self.hub.is_of_an_earlier_life(event):
                self._refuse_error(event.header)
                if "works" in event.header:  # its push comes later
                    continue
                if "host" in event.header:
                    self.shards.greet(worker, event)
                    self._take_back(worker)
                elif worker in self.alive and not self._over:
                    self._take(worker, event.header, event.values)

    def _part_from_silent(self) -> None:
        """Take workers that give no sign of life for dead. LostPeer if their policy needs them, or if nobody is left."""
        self.hub.keep_in_touch()
        if self.hub.has_events:  # which came while this process was stopped
            return
        silent, limit_s = self.tickets.working, self.transport.timeout_s
        if not silent:
            raise LostPeer(f"no push arrived for {limit_s:g} s, and no worker is left")
        if not self.server.policy.goes_on:
            told = f"{named(silent, 'worker')} of {counted(self.workers, 'worker')}"
            raise LostPeer(f"no push arrived for {limit_s:g} s; waiting for {told}")
        for worker in silent:
            self.hub.part_from(worker + self.shards.servers, f"no sign of life for {limit_s:g} s")

    @staticmethod
    def _refuse_error(header: Header) -> None:
        if "error" in header:
            raise FiretrainError(header["error"])

    def _lose(self, worker: int, why: str) -> None:
        """Go on without a worker. LostPeer if its policy needs it."""
        if worker not in self.alive:
            return
        text = f"{named([worker], 'worker')} has ended (rank {worker + self.shards.servers}: {why})"
        try:
            if not self.server.policy.goes_on:
                raise UserError(f"strategy {self.config.strategy.spec} waits for every worker")
            released = self.server.policy.lose(worker)
        except UserError as error:
            raise LostPeer(f"{text}: {error}") from None
        self.lost += 1
        self.alive.discard(worker)
        self.ledger.present = max(1, len(self.alive))
        self._resting.discard(worker)
        self._statistics.pop(worker, None)
        self.tickets.give_back(worker)
        self.log.warn(f"{text}; training goes on with {counted(len(self.alive), 'worker')}")
        self._release([*released, *self._resting])

    def _take_back(self, worker: int) -> None:
        """Let a worker that was started again take part."""
        self.server.policy.join(worker)
        self.alive.add(worker)
        self.ledger.take_back(worker, len(self.alive))
        self.log.say(f"{named([worker], 'worker')} takes part again")
        self._release([worker])

    def _take(self, worker: int, header: Header, values: Tensor) -> None:
        """Take what a worker pushed, and do what is due then."""
        if not math.isfinite(header["loss"]):
            raise diverged(self.ledger.step + 1, header["loss"] / max(1, header["images"]), self._rate())
        before = self.shards.statistics.numel()
        self._statistics[worker] = values[:before].clone()
        order = self.server.decide(worker, header["stamp"], header["images"])
        self.shards.take(worker, order, values[before:])
        used = self.tickets.used
        self.tickets.use(worker)
        self._bad |= set(header["bad"])
        self._loss[0] += header["loss"]
        self._loss[1] += header["images"]
        self.ledger.take(worker, header["seconds"], header["images"])
        self._note(used, order)
        if not self._over:
            self._release(order.released)

    def _note(self, used: int, order: Order) -> None:
        """Write, evaluate and save what is due after a push."""
        shares, config, target = self.server.policy.shares, self.config, self.config.target
        before, step = used // shares, self.tickets.used // shares
        per_epoch = self.schedule.steps_per_epoch
        self.ledger.step = step
        epoch, last = self._epoch, self.tickets.used >= self.tickets.total
        ends_epoch = _crossed(before, step, per_epoch)
        logged = _crossed(before, step, config.log.every_steps)
        if logged or ends_epoch or (last and step > before):
            self._write(max(0, step - 1) // per_epoch)
        if ends_epoch:
            self._warn_of_stagnation(epoch - 1)
        self._evaluation_due |= last or _crossed(before, step, per_epoch * target.evaluate_every_epochs)
        whole = order.update is not None  # otherwise some gradients are kept that no update has
        if self._evaluation_due and (whole or last or not self.server.policy.local_steps):
            self._evaluate(epoch)
            reached = target.top1 is not None and cast(Score, self._score).top1 >= target.top1
            self._over = last or (reached and not target.train_on)
        every = config.checkpoint.every_steps
        self._checkpoint_due |= bool(every and _crossed(before, step, every))
        ended = range(before // per_epoch + 1, step // per_epoch + 1)
        self._checkpoint_due |= any(self.checkpoints.due(one, step, last=False) for one in ended)
        self._stopping |= (logged or ends_epoch) and not self._over and self.stop.agreed()
        if whole and not self._over and (self._checkpoint_due or self._stopping):
            self._save()
        if whole and self._stopping and not self._over:
            self.stop.refuse_unwritten()
            raise Stopped(f"stopped after step {step} on request; the next attempt resumes from there")

    def _write(self, epoch: int) -> None:
        loss = self._loss[0] / max(1.0, self._loss[1])
        self._loss = [0.0, 0.0]
        self._losses.append(loss)
        self.ledger.log_steps(epoch, loss, self._rate())

    def _warn_of_stagnation(self, epoch: int) -> None:
        warm = self.ledger.step - self.schedule.steps_per_epoch >= self.schedule.warmup_steps
        if warm and (warning := self.stagnation.warning(epoch, self._losses)):
            self.log.warn(warning)
        self._losses = []

    def _evaluate(self, epoch: int) -> None:
        self._evaluation_due = False
        with self.ledger.evaluation(epoch) as scores:
            load_flat(self.evaluator.model, self.shards.collected().to(self.transport.device))
            load_statistics(self.evaluator.model, self._mean_statistics())
            scores.append(evaluate(self.evaluator, self.input, self.transport, self.hub.keep_in_touch))
        score = self._score = scores[-1]
        self.log.say(f"epoch {epoch}: top-1 {score.top1:.2%}, loss {score.loss:.4f}, {score.images} test images")
        if self.config.target.top1 is not None and score.top1 >= self.config.target.top1:
            self.ledger.note_reached(epoch)

    def _save(self, *, last: bool = False) -> None:
        self._checkpoint_due = False
        state = {
            "server": {**self.server.state(), **self.tickets.state(), "workers_lost": self.lost},
            **self.shards.state(self._mean_statistics()),
        }
        self.checkpoints.save(self.ledger, state, last=last)

    def _end(self) -> dict[str, Any]:
        """Save, and write the summary."""
        epoch = self._epoch
        if self._score is None:
            self._evaluate(epoch)
        if self.checkpoints.due(epoch, self.ledger.step, last=True):
            self._save(last=True)
        self.stop.refuse_unwritten()
        bad = len(self._bad) + self.input.bad_images()
        summary = self.ledger.summary(epoch, cast(Score, self._score), bad, self.facts)
        self.stop.refuse_unwritten()
        return summary

    def _release(self, workers: Iterable[int]) -> None:
        """Send the weights to workers, with the next shares; workers for which there is none rest."""
        chosen = sorted(set(workers) & self.alive)
        drawn = self.tickets.draw(chosen, self.server.policy.local_steps or 1)
        self._resting = (self._resting - set(chosen)) | {worker for worker in chosen if not drawn[worker]}
        if going := [worker for worker in chosen if drawn[worker]]:
            tasks = {worker: {"stamp": self.server.updates, "numbers": drawn[worker]} for worker in going}
            self.shards.send(tasks, self._mean_statistics())

    def _mean_statistics(self) -> Tensor:
        """The running statistics of batch norm, averaged over the workers."""
        if found := list(self._statistics.values()):  # none, if all workers have died
            self.shards.statistics = torch.stack(found).mean(0)
        return self.shards.statistics

    @property
    def _epoch(self) -> int:
        """The number of epochs that have ended. The last one may end early; data-parallel training counts it, too."""
        whole, more = divmod(self.ledger.step, self.schedule.steps_per_epoch)
        return max(1, whole + bool(more and self.tickets.used >= self.tickets.total))

    def _rate(self) -> float:
        """The learning rate of the newest step."""
        if self.server.policy.local_steps:
            return self.schedule.rate(max(0, self.ledger.step - 1))
        return self.server.newest_rate()


def _crossed(before: int, after: int, every: int) -> bool:
    """Whether a multiple of `every` lies above `before` and not above `after`."""
    return after // every > before // every
