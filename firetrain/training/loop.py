"""The training loop, from the first step to the target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from torch import Tensor

from firetrain.cluster import Clock
from firetrain.config import Config
from firetrain.data.batch import Batch
from firetrain.data.order import Samples, global_batches
from firetrain.optim.learning_rate import LearningRate
from firetrain.parallel.worker import Worker
from firetrain.records.parts import BETWEEN_STEPS, COMPUTE, EXPOSED
from firetrain.training.checkpoints import Checkpoints
from firetrain.training.divergence import Divergence, diverged
from firetrain.training.evaluation import Score, evaluate
from firetrain.training.input import Input
from firetrain.training.ledger import Ledger
from firetrain.training.log import Log
from firetrain.training.stagnation import Stagnation
from firetrain.training.stop import Stop, Stopped
from firetrain.transport.transport import Transport


@dataclass
class Training:
    """One rank of a run, made by `training.setup.set_up`; `run` trains to the target or the limit."""

    config: Config
    transport: Transport
    clock: Clock
    log: Log
    ledger: Ledger
    checkpoints: Checkpoints
    stop: Stop
    worker: Worker
    input: Input
    rate: LearningRate
    divergence: Divergence
    stagnation: Stagnation

    def run(self) -> dict[str, Any]:
        """Train; returns the summary, which is also written to summary.json. Stopped if the run was asked to end earlier."""
        self._warm_up()
        self.worker.check_bits(self.ledger.step)
        self.transport.barrier()
        self.ledger.first_step()
        last, score, target = False, None, self.config.target
        # a stop never separates an epoch's last step from its evaluation
        epoch, steps = divmod(self.ledger.step, self.rate.steps_per_epoch)
        while not last:
            if self.ledger.step < self.rate.total_steps:  # otherwise only the last evaluation is missing
                self._epoch(epoch, steps)
                epoch, steps = epoch + 1, 0
            last = epoch == target.max_epochs or self.ledger.step >= self.rate.total_steps
            if last or epoch % target.evaluate_every_epochs == 0:
                score = self._evaluate(epoch)
                if target.top1 is not None and score.top1 >= target.top1:
                    self.ledger.note_reached(epoch)
                    last = last or not target.train_on
            if self.checkpoints.due(epoch, self.ledger.step, last=last):
                self.checkpoints.save(self.ledger, self.worker.state(), last=last)
            if not last:
                self._stop_if_asked()
        self.worker.check_bits(self.ledger.step)
        self.stop.refuse_unwritten()  # the run is complete only if everything was written
        summary = self.ledger.summary(epoch, cast(Score, score), self.input.bad_images(), self.worker.facts())
        self.stop.refuse_unwritten()
        return summary

    def ask_to_stop(self) -> None:
        """Ask all ranks to save a checkpoint and end after one of the next steps."""
        self.stop.ask()

    def close(self) -> None:
        """End the threads, and remove the hooks from the model."""
        self.input.close()
        self.worker.close()
        self.log.close()

    def _epoch(self, epoch: int, steps: int) -> None:
        """Train an epoch from its step `steps` on."""
        config, ledger = self.config, self.ledger
        images = len(self.input.dataset.train.labels)
        left = global_batches(images, config.batch.global_size, config.seed, epoch)
        left = left[steps : steps + self.rate.total_steps - ledger.step]
        read = (self.worker.reads(some) for samples in left for some in self.worker.micro_batches(samples))
        batches = self.input.training_batches(read, epoch)
        ledger.start_epoch()
        losses: list[float] = []
        warm = ledger.step >= self.rate.warmup_steps
        for samples in left:
            rate, last = self.rate.rate(ledger.step), samples is left[-1]
            totals = self._step(batches, samples, rate, epoch, last)
            ledger.count_step(len(samples))
            logged = ledger.step % config.log.every_steps == 0
            if logged or last:
                losses.append(self._loss(totals))
                ledger.log_steps(epoch, losses[-1], rate)
            every_steps = config.reduction.checksum_every_steps
            if every_steps and ledger.step % every_steps == 0:
                self.worker.check_bits(ledger.step)
            if not last:
                if self.checkpoints.due_within(ledger.step):
                    self.checkpoints.save(ledger, self.worker.state())
                if logged:
                    self._stop_if_asked()
            ledger.lap(BETWEEN_STEPS)
        if warm and (warning := self.stagnation.warning(epoch, losses)):
            self.log.warn(warning)
        self._note_noise(epoch)

    def _step(self, batches: Iterator[Batch], samples: Samples, rate: float, epoch: int, last: bool) -> Tensor:
        """Train on one global batch: gradient of the mean loss, and update. Returns this rank's [sum of losses, images]."""
        totals = self.worker.backward(batches, self.worker.micro_batches(samples), epoch, self.ledger.lap)
        images: float | Tensor = float(len(samples))
        if self.config.data.on_bad_image == "skip":
            images = self.transport.sum(totals.clone())[1]
        self.worker.finish(images)
        self.ledger.lap(EXPOSED)
        step, often = self.ledger.step + 1, (self.config.log.every_steps, self.config.checkpoint.every_steps)
        look = last or any(every and step % every == 0 for every in often)
        if self.divergence.seen(self.worker.finite(), look=look):
            raise diverged(step, self._loss(totals.clone()), rate)
        self.worker.update(rate)
        self.ledger.lap(COMPUTE)
        return totals

    def _loss(self, totals: Tensor) -> float:
        """The mean loss of a global batch, from this rank's [sum of losses, images]. Collective; changes `totals`."""
        total, images = self.transport.sum(totals).tolist()
        return float(total / max(1.0, images))

    def _evaluate(self, epoch: int) -> Score:
        with self.ledger.evaluation(epoch) as scores:
            scores.append(evaluate(self.worker, self.input, self.transport))
        score = scores[-1]
        self.log.say(f"epoch {epoch}: top-1 {score.top1:.2%}, loss {score.loss:.4f}, {score.images} test images")
        return score

    def _stop_if_asked(self) -> None:
        """If any rank was asked to stop: save a checkpoint, and raise Stopped on all ranks.

        CannotWrite on all ranks if rank 0 could not write something.
        """
        if not self.stop.agreed():
            return
        self.checkpoints.save(self.ledger, self.worker.state())
        self.stop.refuse_unwritten()  # no rank may exit before the checkpoint is written
        raise Stopped(f"stopped after step {self.ledger.step} on request; the next attempt resumes from there")

    def _warm_up(self) -> None:
        if self.config.compile:
            before_s = self.clock.now_s()
            images = len(self.input.dataset.train.labels)
            whole = min(self.config.batch.global_size, images)
            rest = images % whole
            training = {len(mine) for size in (whole, rest) for mine in self.worker.micro_batches(np.arange(size))}
            evaluation = {len(some) for some in self.worker.evaluation_batches(len(self.input.dataset.test.labels))}
            self.worker.warm_up(self.config.data.image_size, training - {0}, evaluation - {0})
            self.ledger.put_off(self.clock.now_s() - before_s)

    def _note_noise(self, epoch: int) -> None:
        found = self.worker.noise_scale()
        if found is None:
            return
        self.ledger.note_noise(epoch, *found)
        batch = self.config.batch.global_size
        self.log.say(f"epoch {epoch + 1}: gradient noise scale {found[0]:.0f} images, at a batch of {batch}")
