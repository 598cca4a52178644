"""The training loop, from the first step to the target."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any, cast

import torch
from torch import nn

from firetrain import checkpoint
from firetrain.cluster import Clock, SystemClock
from firetrain.config import Config
from firetrain.data.catalogue import open_dataset
from firetrain.data.images import Dataset
from firetrain.data.loader import Batch, Loader
from firetrain.data.order import Samples, global_batches, micro_batches, part, steps_per_epoch
from firetrain.errors import FiretrainError
from firetrain.models.catalogue import make_model
from firetrain.optim.lars import make_optimizer, set_rate
from firetrain.optim.learning_rate import LearningRate
from firetrain.records import COMPLETED, Run
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.checksum import check_same_bits
from firetrain.reduction.gradients import Gradients
from firetrain.reduction.transport import Transport
from firetrain.training.evaluation import Score, evaluate
from firetrain.training.step import ForwardBackward, accumulate
from firetrain.training.stopwatch import Stopwatch

Say = Callable[[str], None]


class Training:
    """One rank of a run: set up from a config, then `run` to the target or the limit."""

    def __init__(self, config: Config, transport: Transport, run: Run, clock: Clock | None = None) -> None:
        self.config, self.transport, self.record = config, transport, run
        self.clock = clock or SystemClock()
        self.dataset = open_dataset(config.data)
        self.model = prepare_model(config, self.dataset, transport)
        self.forward = cast(nn.Module, torch.compile(self.model)) if config.compile else self.model
        self.forward_backward = ForwardBackward(self.forward, config, transport.device)
        self.optimizer = make_optimizer(self.model, config)
        self.reduction = find_reduction(config.reduction.name, transport)
        self.gradients = Gradients(self.model.parameters(), self.reduction, config.reduction.bucket_mib)
        self.train_loader = make_loader(config, self.dataset, transport, train=True)
        self.test_loader = make_loader(config, self.dataset, transport, train=False)
        self.rate = LearningRate.of(config, steps_per_epoch(len(self.dataset.train.labels), config.batch.global_size))
        self.watch = Stopwatch(transport.device, self.clock)
        self.step = 0
        self.totals = dict.fromkeys(("data", "compute", "exposed_communication"), 0.0)
        self.images = 0
        self.evaluation_s = self.checkpoint_s = self.elapsed_s = 0.0
        self.score: Score | None = None

    @property
    def first(self) -> bool:
        """Whether this rank writes the records."""
        return self.transport.rank == 0

    def run(self) -> dict[str, Any]:
        """Train; returns the summary, which is also in the run's summary.json."""
        self._announce()
        if self.config.compile:
            self._compile()
        check_same_bits(self.model.parameters(), self.transport, self.step)
        self.transport.barrier()
        started_s, started = self.clock.now_s(), self.clock.date()
        epoch, reached = 0, False
        while not reached and epoch < self.config.target.max_epochs and self.step < self.rate.total_steps:
            self._epoch(epoch)
            epoch += 1
            reached = self._evaluate_if_due(epoch, started_s)
            self._checkpoint_if_due(epoch, last=reached or self.step >= self.rate.total_steps)
        check_same_bits(self.model.parameters(), self.transport, self.step)
        return self._finish(epoch, reached, started)

    @property
    def _train_s(self) -> float:
        """Seconds up to the latest evaluation that were neither evaluation nor checkpoint."""
        return self.elapsed_s - self.evaluation_s - self.checkpoint_s

    def close(self) -> None:
        """End threads and take the hooks off."""
        self.train_loader.close()
        self.test_loader.close()
        self.gradients.close()
        self.reduction.close()

    def _epoch(self, epoch: int) -> None:
        config = self.config
        plan = global_batches(len(self.dataset.train.labels), config.batch.global_size, config.seed, epoch)
        plan = plan[: self.rate.total_steps - self.step]
        batches = self.train_loader.batches(self._pieces(plan), epoch)
        window_images, window_steps = 0, 0
        self.watch.start()
        for samples in plan:
            pieces = len(list(micro_batches(self._mine(samples), config.batch.per_rank_max)))
            rate = self.rate.rate(self.step)
            totals = self._step(batches, pieces, len(samples), rate, epoch)
            self.step += 1
            self.images += len(samples)
            window_images, window_steps = window_images + len(samples), window_steps + 1
            if self.step % config.log.every_steps == 0 or samples is plan[-1]:
                self._log(epoch, rate, self.transport.sum(totals), window_images, window_steps)
                window_images, window_steps = 0, 0
            every = config.reduction.checksum_every_steps
            if every and self.step % every == 0:
                check_same_bits(self.model.parameters(), self.transport, self.step)
            self.watch.start()

    def _step(self, batches: Iterator[Batch], pieces: int, count: int, rate: float, epoch: int) -> torch.Tensor:
        totals = accumulate(self.forward_backward, batches, pieces, self.gradients, epoch, self.watch.mark)
        images = float(count)
        if self.config.data.on_bad_image == "skip":
            images = max(1.0, float(self.transport.sum(totals.clone())[1]))
        self.gradients.finish(images)
        self.watch.mark("exposed_communication")
        set_rate(self.optimizer, rate)
        self.optimizer.step()
        self.watch.mark("compute")
        return totals

    def _mine(self, samples: Samples) -> Samples:
        return part(samples, self.transport.rank, self.transport.size)

    def _pieces(self, plan: list[Samples]) -> Iterator[Samples]:
        for samples in plan:
            yield from micro_batches(self._mine(samples), self.config.batch.per_rank_max)

    def _log(self, epoch: int, rate: float, totals: torch.Tensor, images: int, steps: int) -> None:
        parts = self.watch.totals()
        for name, seconds in parts.items():
            self.totals[name] += seconds
        loss = float(totals[0] / totals[1])
        if not math.isfinite(loss):
            raise FiretrainError(
                f"the loss is {loss} at step {self.step} (learning rate {rate:g}); "
                "lower learning_rate.base, or give it warmup_epochs"
            )
        if self.first:
            window_s = sum(parts.values())
            per_step = {f"{name}_s": seconds / steps for name, seconds in parts.items()}
            speed = {"images_per_s": images / window_s, "step_s": window_s / steps}
            line = {"kind": "step", "step": self.step, "epoch": epoch, "loss": loss, "learning_rate": rate}
            self.record.append(line | speed | per_step)

    def _evaluate_if_due(self, epoch: int, started_s: float) -> bool:
        """After the last step, and every so many epochs; whether the target is reached."""
        target = self.config.target
        last = epoch == target.max_epochs or self.step >= self.rate.total_steps
        if epoch % target.evaluate_every_epochs and not last:
            return False
        before_s = self.clock.now_s()
        count = len(self.dataset.test.labels)
        self.score = evaluate(
            self.forward, self.test_loader, count, self._largest_piece(), self.transport, self.config.precision
        )
        ended_s = self.clock.now_s()
        spent_s, self.elapsed_s = ended_s - before_s, ended_s - started_s
        self.evaluation_s += spent_s
        if self.first:
            times = {"evaluation_s": spent_s, "train_s": self._train_s, "elapsed_s": self.elapsed_s}
            self.record.append({"kind": "evaluation", "step": self.step, "epoch": epoch, **asdict(self.score), **times})
            self._say(
                f"epoch {epoch}: top-1 {self.score.top1:.2%}, loss {self.score.loss:.4f}, {self.score.images} test images"
            )
        return target.top1 is not None and self.score.top1 >= target.top1

    def _checkpoint_if_due(self, epoch: int, last: bool) -> None:
        every = self.config.checkpoint.every_epochs
        if not self.first or not every or (epoch % every and not last):
            return
        before_s = self.clock.now_s()
        state = {
            "epoch": epoch,
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        checkpoint.save(self.record.path / "checkpoints", epoch, state, self.config.checkpoint.keep)
        if not last:
            self.checkpoint_s += self.clock.now_s() - before_s

    def _finish(self, epochs: int, reached: bool, started: datetime) -> dict[str, Any]:
        created = datetime.fromisoformat(self.record.facts()["created"]) if self.first else started
        score = self.score
        in_steps_s = sum(self.totals.values())
        summary = {
            "state": COMPLETED,
            "reached": reached,
            "top1": score.top1 if score else None,
            "top5": score.top5 if score else None,
            "epochs": epochs,
            "steps": self.step,
            "images": self.images,
            "world_size": self.transport.size,
            "nodes": len(self.transport.world.nodes),
            "time_to_accuracy_s": self.elapsed_s if reached else None,
            "elapsed_s": self.elapsed_s,
            "train_s": self._train_s,
            "evaluation_s": self.evaluation_s,
            "checkpoint_s": self.checkpoint_s,
            "startup_s": (started - created).total_seconds(),
            **{f"{name}_s": seconds for name, seconds in self.totals.items()},
            "images_per_s": self.images / in_steps_s if in_steps_s else None,
            "bad_images": self._bad_images(),
        }
        if self.first:
            self.record.write("summary.json", summary)
        return summary

    def _bad_images(self) -> int:
        """How many different images could not be read, over all ranks; each rank names those it met in its log."""
        count = 0
        for loader, images in ((self.train_loader, self.dataset.train), (self.test_loader, self.dataset.test)):
            met = torch.zeros(len(images.labels), device=self.transport.device)
            for sample, reason in sorted(loader.bad.items()):
                met[sample] = 1
                print(f"skipped {reason}", flush=True)
            count += int(self.transport.sum(met).count_nonzero())
        return count

    def _largest_piece(self) -> int:
        return largest_piece(self.config, self.transport)

    def _announce(self) -> None:
        parameters = sum(p.numel() for p in self.model.parameters())
        self._say(f"{self.config.model.name}, {parameters:,} parameters, on {self.dataset.name}: "
                  f"{len(self.dataset.train.labels):,} training and {len(self.dataset.test.labels):,} test images, "
                  f"{len(self.dataset.classes)} classes")  # fmt: skip
        self._say(f"{self.transport.world} over {self.transport.name}, reduction {self.config.reduction.name}, "
                  f"{len(self.gradients.buckets)} buckets; {torch.get_num_threads()} compute threads per rank")  # fmt: skip
        self._say(f"learning rate {self.rate.explain(self.config.batch.global_size)}")

    def _say(self, text: str) -> None:
        if self.first:
            print(text, flush=True)

    def _compile(self) -> None:
        """Run the model once each way before the clock starts; its statistics are put back afterwards."""
        kept = {name: value.clone() for name, value in self.model.state_dict().items()}
        size = self.config.data.image_size
        images = torch.zeros(self._largest_piece(), 3, size, size, device=self.transport.device)
        outputs = self.forward(images)
        sum(head.float().sum() for head in (outputs if isinstance(outputs, tuple) else (outputs,))).backward()
        self.model.eval()
        with torch.no_grad():
            self.forward(images)
        self.model.train()
        self.model.load_state_dict(kept)


def prepare_model(config: Config, dataset: Dataset, transport: Transport) -> nn.Module:
    """The model on this rank's device, in training mode, with rank 0's weights."""
    model = make_model(config.model, len(dataset.classes), config.seed)
    layout = torch.channels_last if config.channels_last else torch.contiguous_format
    model = model.to(transport.device, memory_format=layout).train()  # type: ignore[call-overload]
    if transport.size > 1:
        with torch.no_grad():
            flat = transport.broadcast(torch.cat([p.flatten() for p in model.parameters()]))
            for parameter, values in zip(
                model.parameters(), flat.split([p.numel() for p in model.parameters()]), strict=True
            ):
                parameter.copy_(values.view(parameter.shape))
    return model  # type: ignore[no-any-return]


def make_loader(config: Config, dataset: Dataset, transport: Transport, *, train: bool) -> Loader:
    """The loader of a split, with the rank's share of the cores as threads."""
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
