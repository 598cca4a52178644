"""The training loop, from the first step to the target."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from firetrain import checkpoint
from firetrain.cluster import Clock, SystemClock
from firetrain.config import Config
from firetrain.data.catalogue import load_libraries, open_dataset
from firetrain.data.images import Dataset
from firetrain.data.loader import Batch, Loader
from firetrain.data.order import Samples, global_batches, micro_batches, part, steps_per_epoch
from firetrain.errors import CannotWrite, FiretrainError, UserError
from firetrain.models.catalogue import make_model
from firetrain.optim.catalogue import make_optimizer, set_rate
from firetrain.optim.learning_rate import LearningRate
from firetrain.records import Run
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.checksum import check_same_bits
from firetrain.reduction.gradients import Gradients
from firetrain.reduction.observed import Observed
from firetrain.reduction.transport import Transport
from firetrain.reduction.wiring import make_wiring
from firetrain.training.evaluation import Score, evaluate
from firetrain.training.ledger import Ledger
from firetrain.training.noise import NoiseScale
from firetrain.training.step import ForwardBackward, accumulate, autocast

# how near to that of guessing the loss of an epoch may be
_NOTHING_LEARNED = 0.005


class Stopped(Exception):
    """The run was asked to end before its end; it can be gone on with from its newest checkpoint."""


class Diverged(FiretrainError):
    """Gradients that are not finite; all ranks raise it at the same step."""


class Training:
    """One rank of a run: set up from a config, then `run` to the target or the limit.

    If the run has a checkpoint, it goes on from there: with the same bits as if it had never stopped, if the world is the same,
    the reduction keeps nothing from step to step (powersgd and top-k do) and chooses nothing anew (auto without a profile does),
    and there is no batch norm on several ranks, whose running statistics are rank 0's from then on. The images of every step
    are the same anyway. `began`: see Ledger.
    """

    def __init__(
        self,
        config: Config,
        transport: Transport,
        record: Run,
        clock: Clock | None = None,
        stop_marks: Sequence[Path] | None = None,
        began: float | None = None,
    ) -> None:
        self.config, self.transport, self.record = config, transport, record
        self._stop_marks = [record.stop_mark] if stop_marks is None else stop_marks
        state = self._newest()
        self.clock = clock or SystemClock()
        self.ledger = Ledger(record, transport, self.clock, began)
        if state or (record.path / "metrics.jsonl").exists():
            self.ledger.resume(state.get("clocks"))
        load_libraries(config.data)
        self.ledger.start()
        self.dataset = open_dataset(config.data)
        self.model = prepare_model(config, self.dataset, transport)
        self.forward = cast(nn.Module, torch.compile(self.model)) if config.compile else self.model
        self.forward_backward = ForwardBackward(self.forward, config, transport.device)
        self.optimizer = make_optimizer(self.model, config)
        wiring = make_wiring(transport, config.reduction)
        self.reduction = find_reduction(str(config.reduction.spec), wiring)
        self.noise: NoiseScale | None = None
        if config.log.noise_scale:
            if transport.size == 1:
                raise UserError("log.noise_scale compares the gradients of ranks: it needs 2 or more")
            self.noise = NoiseScale(transport.size)
            self.reduction = Observed(self.reduction)
        # buckets decide in which order sums are rounded: those of the first attempt stay
        self.bucket_bytes = state.get("bucket_bytes") or wiring.bucket_bytes(config.reduction.bucket_mib)
        self.gradients = Gradients(self.model.parameters(), self.reduction, self.bucket_bytes)
        self.train_loader = make_loader(config, self.dataset, transport, train=True)
        self.test_loader = make_loader(config, self.dataset, transport, train=False)
        self.rate = LearningRate.of(config, steps_per_epoch(len(self.dataset.train.labels), config.batch.global_size))
        self._asked_to_stop, self._saved = False, 0
        self._finite, self._warned = torch.tensor(True, device=transport.device), False
        if state:
            self._resume(state)

    def run(self) -> dict[str, Any]:
        """Train; returns the summary, which is also in the run's summary.json. Stopped if it was asked to end earlier."""
        self._announce()
        if self.config.compile:
            before_s = self.clock.now_s()
            self._compile()
            self.ledger.note_compiled(self.clock.now_s() - before_s)
        self._check_bits()
        self.transport.barrier()
        self.ledger.first_step()
        last, score, target = False, None, self.config.target
        # an epoch's last step and its evaluation are never parted by a stop
        epoch, steps = divmod(self.ledger.step, self.rate.steps_per_epoch)
        while not last:
            if self.ledger.step < self.rate.total_steps:  # else only the last evaluation was missing
                self._epoch(epoch, steps)
                epoch, steps = epoch + 1, 0
            last = epoch == target.max_epochs or self.ledger.step >= self.rate.total_steps
            if last or epoch % target.evaluate_every_epochs == 0:
                score = self._evaluate(epoch)
                if target.top1 is not None and score.top1 >= target.top1:
                    self.ledger.note_reached(epoch)
                    last = last or not target.train_on
            epochs, every_steps = self.config.checkpoint.every_epochs, self.config.checkpoint.every_steps
            due = (epochs and epoch % epochs == 0) or (every_steps and self.ledger.step % every_steps == 0)
            if due or (last and epochs):
                self._checkpoint(last)
            self._stop_if_asked(last)
        self._check_bits()
        self._refuse_unwritten()  # a run is complete when all of it is kept
        summary = self.ledger.summary(epoch, cast(Score, score), self._bad_images(), self._reduction_facts())
        self._refuse_unwritten()
        return summary

    def ask_to_stop(self) -> None:
        """Have all ranks save and end at one of their next steps."""
        self._asked_to_stop = True

    def close(self) -> None:
        """End threads and take the hooks off."""
        for part_of_it in (self.train_loader, self.test_loader, self.gradients, self.reduction):
            part_of_it.close()

    def _epoch(self, epoch: int, steps: int) -> None:
        """An epoch from its step `steps` on."""
        config, ledger = self.config, self.ledger
        plan = global_batches(len(self.dataset.train.labels), config.batch.global_size, config.seed, epoch)
        plan = plan[steps : steps + self.rate.total_steps - ledger.step]
        batches = self.train_loader.batches((piece for samples in plan for piece in self._pieces(samples)), epoch)
        ledger.start_epoch()
        losses: list[float] = []
        warm = ledger.step >= self.rate.warmup_steps
        for samples in plan:
            rate = self.rate.rate(ledger.step)
            last = samples is plan[-1]
            totals = self._step(batches, samples, rate, epoch, last)
            ledger.count_step(len(samples))
            if ledger.step % config.log.every_steps == 0 or last:
                losses.append(self._loss(totals))
                ledger.log_steps(epoch, losses[-1], rate)
            if config.reduction.checksum_every_steps and ledger.step % config.reduction.checksum_every_steps == 0:
                self._check_bits()
            if not last:
                if config.checkpoint.every_steps and ledger.step % config.checkpoint.every_steps == 0:
                    self._checkpoint()
                if ledger.step % config.log.every_steps == 0:
                    self._stop_if_asked()
            ledger.mark("other")
        if warm:
            self._watch(epoch, losses)
        if self.noise:
            scale, signal, noise = self.noise.estimate(self.transport.sum(self.noise.take().to(self.transport.device)))
            ledger.note_noise(epoch, scale, signal, noise)
            self._say(
                f"epoch {epoch + 1}: gradient noise scale {scale:.0f} images, at a batch of {config.batch.global_size}"
            )

    def _step(self, batches: Iterator[Batch], samples: Samples, rate: float, epoch: int, last: bool) -> Tensor:
        """One global batch: gradients of this rank's part, their mean over all ranks, the update."""
        pieces = len(self._pieces(samples))
        totals = accumulate(self.forward_backward, batches, pieces, self.gradients, epoch, self.ledger.mark)
        images = float(len(samples))
        if self.config.data.on_bad_image == "skip":
            images = max(1.0, float(self.transport.sum(totals.clone())[1]))
        self.gradients.finish(images)
        self.ledger.mark("exposed_communication")
        self._refuse_divergence(totals, rate, last)
        if self.noise and isinstance(self.reduction, Observed):
            self.noise.add(self.reduction.take(), [bucket.buffer for bucket in self.gradients.buckets], len(samples))
        set_rate(self.optimizer, rate)
        self.optimizer.step()
        self.ledger.mark("compute")
        return totals

    def _pieces(self, samples: Samples) -> list[Samples]:
        """This rank's micro-batches of a global batch."""
        mine = part(samples, self.transport.rank, self.transport.size)
        return list(micro_batches(mine, self.config.batch.per_rank_max))

    def _loss(self, totals: Tensor) -> float:
        """The mean loss of a global batch from each rank's [sum, images]."""
        total, images = self.transport.sum(totals).tolist()
        return float(total / max(1.0, images))

    def _refuse_divergence(self, totals: Tensor, rate: float, last: bool) -> None:
        """Diverged on all ranks together, before the weights are touched, if a gradient of any rank is not finite.

        On a GPU nobody waits for the answer: it is looked at where a step is logged, kept or evaluated, some steps later.
        """
        self._finite = self.gradients.finite() & self._finite
        step, often = self.ledger.step + 1, (self.config.log.every_steps, self.config.checkpoint.every_steps)
        looked_at = last or any(every and step % every == 0 for every in often)
        if self._finite.device.type != "cpu" and not looked_at:
            return
        if self._finite.item():
            return
        raise Diverged(
            f"diverged at step {self.ledger.step + 1}: the loss is {self._loss(totals.clone()):.4g}, gradients are not finite "
            f"(learning rate {rate:g}). Lower learning_rate.base or peak, give warmup_epochs, or, where the batch is large and "
            "the model has no batch norm, take optimizer.name lars; the newest checkpoint was saved before this step"
        )

    def _watch(self, epoch: int, losses: list[float]) -> None:
        """Warn, once, if a whole epoch has taught the model nothing: it says of every class that it is equally likely."""
        chance = math.log(len(self.dataset.classes))
        if self._warned or not losses or abs(sum(losses) / len(losses) / chance - 1.0) > _NOTHING_LEARNED:
            return
        self._warned = True
        warning = (
            f"epoch {epoch + 1} taught nothing: its loss is ln {len(self.dataset.classes)} = {chance:.4f} within "
            f"{_NOTHING_LEARNED:.1%}. Likely causes: a learning rate too large for the first steps (give warmup_epochs: 1) or "
            "too small; small nets without batch norm also die by seed (try another, or model.batch_norm: true)"
        )
        self._say(f"warning: {warning}")
        if self.transport.rank == 0:
            with self.ledger.writing():
                self.record.update(warnings=[*self.record.facts().get("warnings", []), warning])

    def _evaluate(self, epoch: int) -> Score:
        count, most = len(self.dataset.test.labels), largest_piece(self.config, self.transport)
        with self.ledger.evaluation(epoch) as scores:
            scores.append(evaluate(self.forward, self.test_loader, count, most, self.transport, self.config.precision))
        score = scores[-1]
        self._say(f"epoch {epoch}: top-1 {score.top1:.2%}, loss {score.loss:.4f}, {score.images} test images")
        return score

    def _checkpoint(self, last: bool = False) -> None:
        """Rank 0 keeps what is needed to go on."""
        if self.transport.rank == 0 and self._saved != self.ledger.step:
            with self.ledger.checkpoint(last), self.ledger.writing():
                state = {
                    "clocks": self.ledger.state(),
                    "bucket_bytes": self.bucket_bytes,
                    "model": self.model.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                }
                checkpoint.save(self._checkpoints, self.ledger.step, state, self.config.checkpoint.keep)
        self._saved = self.ledger.step

    def _stop_if_asked(self, last: bool = False) -> None:
        """If any rank was told to stop, or a stop mark is there: save, and raise Stopped on all ranks together.

        CannotWrite, on all ranks, if rank 0 could not write what it should have.
        """
        asked = self._asked_to_stop or (self.transport.rank == 0 and any(mark.exists() for mark in self._stop_marks))
        if last or not self._agree(asked):
            return
        self._checkpoint()
        self._refuse_unwritten()  # nobody leaves, and is missed, before the checkpoint is complete
        raise Stopped(f"stopped after step {self.ledger.step}, as was asked; the next attempt goes on from there")

    def _agree(self, asked: bool) -> bool:
        """Whether any rank was asked to stop. CannotWrite on all ranks if rank 0 could not write something."""
        own = [float(asked), float(self.ledger.failure is not None)]
        stop, failed = self.transport.sum(torch.tensor(own, device=self.transport.device)).tolist()
        if failed:
            raise CannotWrite(self.transport.broadcast_object(self._unwritten()))
        return bool(stop)

    def _refuse_unwritten(self) -> None:
        """All ranks wait for each other here. CannotWrite if rank 0 could not write something."""
        self._agree(False)

    def _unwritten(self) -> str:
        """What could not be written, what is safe, and how to go on; on rank 0."""
        if self.ledger.failure is None:
            return ""
        saved = checkpoint.newest_step(self._checkpoints)
        safe = f"the checkpoint after step {saved} is complete" if saved else "there is no checkpoint yet"
        return (
            f"{self.ledger.failure}; {safe}. All ranks ended after step {self.ledger.step}. Make room, then go on with "
            f"firetrain launch --resume {shlex.quote(str(self.record.path))}"
        )

    @property
    def _checkpoints(self) -> Path:
        return self.record.path / "checkpoints"

    def _newest(self) -> dict[str, Any]:
        """The newest checkpoint that can be read, as rank 0 finds it; empty if there is none."""
        path, wrong = checkpoint.newest(self._checkpoints) if self.transport.rank == 0 else (None, [])
        for text in wrong:
            print(f"passed over: {text}", flush=True)
        path = self.transport.broadcast_object(path)
        return checkpoint.load(path) if path else {}

    def _resume(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._saved = self.ledger.step
        self._say(f"going on after step {self.ledger.step}")

    def _check_bits(self) -> None:
        check_same_bits(self.model.parameters(), self.transport, self.ledger.step)

    def _reduction_facts(self) -> dict[str, Any]:
        sizes = [len(bucket) * bucket.buffer.element_size() for bucket in self.gradients.buckets]
        return {"name": str(self.config.reduction.spec), "buckets_bytes": sizes, **self.reduction.facts()}

    def _bad_images(self) -> int:
        """How many different images could not be read, over all ranks; each rank names those it met in its log."""
        count = 0
        for loader, images in ((self.train_loader, self.dataset.train), (self.test_loader, self.dataset.test)):
            met = torch.zeros(len(images.labels), device=self.transport.device)
            for sample, reason in sorted(loader.bad.items()):
                met[sample] = 1
                with suppress(OSError):
                    print(f"skipped {reason}", flush=True)
            count += int(self.transport.sum(met).count_nonzero())
        return count

    def _announce(self) -> None:
        config, data = self.config, self.dataset
        parameters = sum(p.numel() for p in self.model.parameters())
        self._say(
            f"{config.model.name}, {parameters:,} parameters, on {data.name}: {len(data.train.labels):,} training "
            f"and {len(data.test.labels):,} test images, {len(data.classes)} classes"
        )
        self._say(
            f"{self.transport.world} over {self.transport.name}, reduction {config.reduction.spec}, "
            f"{len(self.gradients.buckets)} buckets; {torch.get_num_threads()} compute threads per rank"
        )
        self._say(f"learning rate {self.rate.explain(config.batch.global_size)}")

    def _say(self, text: str) -> None:
        if self.transport.rank == 0:
            with suppress(OSError):  # a log that cannot be written is no reason to end
                print(text, flush=True)

    def _compile(self) -> None:
        """Run the model once each way before the clock starts; its statistics are put back afterwards."""
        kept = {name: value.clone() for name, value in self.model.state_dict().items()}
        size = self.config.data.image_size
        images = torch.zeros(largest_piece(self.config, self.transport), 3, size, size, device=self.transport.device)
        images = images.contiguous(memory_format=torch.channels_last)  # as the loader has them
        with autocast(self.transport.device, self.config.precision):
            outputs = self.forward(images)
        sum(head.float().sum() for head in (outputs if isinstance(outputs, tuple) else (outputs,))).backward()
        self.model.eval()
        with torch.no_grad(), autocast(self.transport.device, self.config.precision):
            self.forward(images)
        self.model.train()
        self.model.load_state_dict(kept)


def prepare_model(config: Config, dataset: Dataset, transport: Transport) -> nn.Module:
    """The model on this rank's device, in training mode, with rank 0's weights."""
    model = make_model(config.model, len(dataset.classes), config.seed)
    layout = torch.channels_last if config.channels_last else torch.contiguous_format
    model = cast(nn.Module, model.to(transport.device, memory_format=layout)).train()  # type: ignore[call-overload]
    if transport.size > 1:
        parameters = list(model.parameters())
        flat = transport.broadcast(torch.cat([p.detach().flatten() for p in parameters]))
        with torch.no_grad():
            for parameter, values in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
                parameter.copy_(values.view(parameter.shape))
    return model


def make_loader(config: Config, dataset: Dataset, transport: Transport, *, train: bool) -> Loader:
    """The loader of a split, with as many threads as the rank has for computing."""
    return Loader(
        dataset.train if train else dataset.test,
        config.data.image_size,
        largest_piece(config, transport),
        augmentation=config.data.augmentation if train else "none",
        seed=config.seed,
        threads=config.data.threads or torch.get_num_threads(),
        skip_bad=config.data.on_bad_image == "skip",
        pin_memory=transport.device.type == "cuda",
    )


def largest_piece(config: Config, transport: Transport) -> int:
    """The most images that a rank holds at once."""
    share = -(-config.batch.global_size // transport.size)
    return min(share, config.batch.per_rank_max or share)
