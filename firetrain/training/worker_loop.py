"""A worker of a parameter server: it pulls weights, trains on the images that the server names, and pushes the result."""

from __future__ import annotations

import math
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from firetrain.cluster import Clock
from firetrain.config import Config
from firetrain.errors import FiretrainError, LostPeer
from firetrain.optim.catalogue import make_optimizer
from firetrain.optim.learning_rate import LearningRate
from firetrain.parallel.batch_norm import load_statistics, statistics
from firetrain.parallel.flat import flat_copy, flat_gradient, load_flat
from firetrain.parallel.local_steps import LocalSteps
from firetrain.parallel.tickets import samples_of
from firetrain.parallel.worker import Worker
from firetrain.records.parts import COMPUTE, EXPOSED, Part
from firetrain.strategy.policy import Policy
from firetrain.training.input import Input
from firetrain.training.stopwatch import Stopwatch
from firetrain.transport.device import copy_to_device, is_gpu
from firetrain.transport.lost_peers import lost_peers
from firetrain.transport.messages import Header, Line
from firetrain.transport.transport import Transport


@dataclass
class WorkerLoop:
    """A worker. Between two pushes it keeps nothing, except its momentum if its policy averages weights.

    - `rank`: its number in the run. `lines`: to the servers, in their order. `bounds`: which weights each of them owns.
    - `began_s`: when it began to open its data, by its clock.
    """

    config: Config
    rank: int
    transport: Transport
    lines: Sequence[Line]
    bounds: Sequence[tuple[int, int]]
    worker: Worker
    input: Input
    schedule: LearningRate
    policy: Policy
    clock: Clock
    began_s: float
    _told: set[int] = field(default_factory=set)  # unreadable images that the server knows

    def run(self) -> None:
        """Work until the server says that the run has ended. LostPeer if it is gone."""
        model, device = self.worker.model, self.transport.device
        before = statistics(model).numel()
        held = torch.empty(before + self.bounds[-1][1], pin_memory=is_gpu(device))
        of_statistics, of_weights = held[:before], held[before:]
        # the statistics come with the weights of the first server, which may own none
        firsts = [0, *(before + start for start, _ in self.bounds[1:])]
        landings = [held[first : before + end] for first, (_, end) in zip(firsts, self.bounds, strict=True)]
        optimizer = make_optimizer(model, self.config)
        local = LocalSteps(model, optimizer) if self.policy.local_steps else None
        stopwatch, first = Stopwatch(device, self.clock), True
        life = secrets.token_hex(4)  # tells what this process sends from what one before it has sent
        with lost_peers(self.rank, "the first message to the parameter server"):
            for line in self.lines[1:]:
                line.send({"life": life})
            opening_s = self.clock.now_s() - self.began_s
            self.lines[0].send({"host": socket.gethostname(), "life": life, "opening_s": opening_s})
        while "stop" not in (header := self._pulled(landings)):
            load_flat(model, copy_to_device(of_weights, device))
            if first:  # the wait for other ranks to start belongs to no step
                load_statistics(model, of_statistics)
                stopwatch.start()
                first = False
            stopwatch.lap(EXPOSED)
            try:
                report = self._trained(header["numbers"], stopwatch, local)
            except LostPeer:
                raise  # the server is gone
            except FiretrainError as error:
                self.lines[0].send({"error": str(error)})
                raise
            if report is None:
                return
            of_statistics.copy_(statistics(model))
            of_weights.copy_(flat_copy(model) if local else flat_gradient(model))
            if not of_weights.isfinite().all():  # although the loss may be
                report["loss"] = math.inf
            stopwatch.lap(COMPUTE)
            seconds = {part.key: value for part, value in stopwatch.totals().items()}
            self._push({"stamp": header["stamp"], "seconds": seconds, **report}, landings)

    def close(self) -> None:
        """End the threads, and close the connections."""
        for line in self.lines:
            line.close()
        self.input.close()
        self.worker.close()

    def _pulled(self, landings: Sequence[Tensor]) -> Header:
        """Receive the weights from all servers; returns the header of the first."""
        with lost_peers(self.rank, "the pull of weights from the parameter server"):
            while "works" in (
                header := self.lines[0].receive(landings[0])
            ):  # the server waits for others, or evaluates
                pass
            if "stop" not in header:
                for line, landing in zip(self.lines[1:], landings[1:], strict=True):
                    line.receive(landing)
        return header

    def _is_over(self) -> bool:
        """Whether the server has said, while this worker computes, that the run has ended."""
        with lost_peers(self.rank, "the next message of the parameter server"):
            while self.lines[0].has_message():
                if "stop" in self.lines[0].receive(torch.empty(0)):
                    return True
        return False

    def _push(self, header: Header, values: Sequence[Tensor]) -> None:
        """Send each server its part; the first one last, because it lets the others apply theirs."""
        with lost_peers(self.rank, "the push to the parameter server"):
            for line, part in zip(self.lines[1:], values[1:], strict=True):
                line.send({}, part)
            self.lines[0].send(header, values[0])

    def _trained(self, numbers: Sequence[int], stopwatch: Stopwatch, local: LocalSteps | None) -> Header | None:
        """Train on some shares; returns what the server is told. The result is in the model's gradients, or in its weights.

        None if the run has ended meanwhile.
        """
        config, shares = self.config, self.policy.shares
        images = len(self.input.dataset.train.labels)
        totals, told_s, is_over = torch.zeros(2, dtype=torch.float64), self.clock.now_s(), False

        def lap(part: Part) -> None:
            nonlocal told_s, is_over
            stopwatch.lap(part)
            # the server takes silence for a hanging worker
            if self.clock.now_s() - told_s > self.transport.timeout_s / 4:
                told_s = self.clock.now_s()
                is_over = is_over or self._is_over()
                if is_over:  # the server does not listen any more
                    return
                with lost_peers(self.rank, "a sign of life for the parameter server"):
                    self.lines[0].send({"works": True})

        for number in numbers:
            epoch, samples = samples_of(number, images, config.batch.global_size, config.seed, shares)
            pieces = self.worker.micro_batches(samples)
            found = self.worker.backward(self.input.training_batches(pieces, epoch), pieces, epoch, lap).cpu()
            self.worker.finish(1.0)
            totals += found
            if local:
                local.make(int(found[1]), self.schedule.rate(number // shares))
            if is_over or self._is_over():
                return None
        bad = self.input.bad_samples() - self._told
        self._told |= bad
        return {"loss": float(totals[0]), "images": int(totals[1]), "bad": sorted(bad)}
