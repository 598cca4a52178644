"""The training loop, from the first step to the target."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

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
from firetrain.records import Run
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.checksum import check_same_bits
from firetrain.reduction.gradients import Gradients
from firetrain.reduction.transport import Transport
from firetrain.reduction.wiring import make_wiring
from firetrain.training.evaluation import Score, evaluate
from firetrain.training.ledger import Ledger
from firetrain.training.step import ForwardBackward, accumulate


class Training:
    """One rank of a run: set up from a config, then `run` to the target or the limit."""

    def __init__(self, config: Config, transport: Transport, record: Run, clock: Clock | None = None) -> None:
        self.config, self.transport, self.record = config, transport, record
        self.dataset = open_dataset(config.data)
        self.model = prepare_model(config, self.dataset, transport)
        self.forward = cast(nn.Module, torch.compile(self.model)) if config.compile else self.model
        self.forward_backward = ForwardBackward(self.forward, config, transport.device)
        self.optimizer = make_optimizer(self.model, config)
        wiring = make_wiring(transport, config.reduction)
        self.reduction = find_reduction(str(config.reduction.spec), wiring)
        bucket_bytes = wiring.bucket_bytes(config.reduction.bucket_mib)
        self.gradients = Gradients(self.model.parameters(), self.reduction, bucket_bytes)
        self.train_loader = make_loader(config, self.dataset, transport, train=True)
        self.test_loader = make_loader(config, self.dataset, transport, train=False)
        self.rate = LearningRate.of(config, steps_per_epoch(len(self.dataset.train.labels), config.batch.global_size))
        self.ledger = Ledger(record, transport, clock or SystemClock())

    def run(self) -> dict[str, Any]:
        """Train; returns the summary, which is also in the run's summary.json."""
        self._announce()
        if self.config.compile:
            self._compile()
        self._check_bits()
        self.transport.barrier()
        self.ledger.start()
        epoch, reached, last, score = 0, False, False, None
        while not last:
            self._epoch(epoch)
            epoch += 1
            last = epoch == self.config.target.max_epochs or self.ledger.step >= self.rate.total_steps
            if last or epoch % self.config.target.evaluate_every_epochs == 0:
                score = self._evaluate(epoch)
                reached = self.config.target.top1 is not None and score.top1 >= self.config.target.top1
                last = last or reached
            self._checkpoint(epoch, last)
        self._check_bits()
        return self.ledger.summary(epoch, reached, cast(Score, score), self._bad_images(), self._reduction_facts())

    def close(self) -> None:
        """End threads and take the hooks off."""
        for part_of_it in (self.train_loader, self.test_loader, self.gradients, self.reduction):
            part_of_it.close()

    def _epoch(self, epoch: int) -> None:
        config, ledger = self.config, self.ledger
        plan = global_batches(len(self.dataset.train.labels), config.batch.global_size, config.seed, epoch)
        plan = plan[: self.rate.total_steps - ledger.step]
        batches = self.train_loader.batches((piece for samples in plan for piece in self._pieces(samples)), epoch)
        ledger.start_epoch()
        for samples in plan:
            rate = self.rate.rate(ledger.step)
            totals = self._step(batches, samples, rate, epoch)
            ledger.count_step(len(samples))
            if ledger.step % config.log.every_steps == 0 or samples is plan[-1]:
                ledger.log_steps(epoch, self._loss(totals, rate), rate)
            if config.reduction.checksum_every_steps and ledger.step % config.reduction.checksum_every_steps == 0:
                self._check_bits()
            ledger.mark("other")

    def _step(self, batches: Iterator[Batch], samples: Samples, rate: float, epoch: int) -> Tensor:
        """One global batch: gradients of this rank's part, their mean over all ranks, the update."""
        pieces = len(self._pieces(samples))
        totals = accumulate(self.forward_backward, batches, pieces, self.gradients, epoch, self.ledger.mark)
        images = float(len(samples))
        if self.config.data.on_bad_image == "skip":
            images = max(1.0, float(self.transport.sum(totals.clone())[1]))
        self.gradients.finish(images)
        self.ledger.mark("exposed_communication")
        set_rate(self.optimizer, rate)
        self.optimizer.step()
        self.ledger.mark("compute")
        return totals

    def _pieces(self, samples: Samples) -> list[Samples]:
        """This rank's micro-batches of a global batch."""
        mine = part(samples, self.transport.rank, self.transport.size)
        return list(micro_batches(mine, self.config.batch.per_rank_max))

    def _loss(self, totals: Tensor, rate: float) -> float:
        """The mean loss of a global batch from each rank's [sum, images]; FiretrainError if it is not finite."""
        total, images = self.transport.sum(totals).tolist()
        if not math.isfinite(total):
            raise FiretrainError(
                f"the loss is {total} at step {self.ledger.step} (learning rate {rate:g}); "
                "lower learning_rate.base, or give it warmup_epochs"
            )
        return float(total / max(1.0, images))

    def _evaluate(self, epoch: int) -> Score:
        count, most = len(self.dataset.test.labels), largest_piece(self.config, self.transport)
        with self.ledger.evaluation(epoch) as scores:
            scores.append(evaluate(self.forward, self.test_loader, count, most, self.transport, self.config.precision))
        score = scores[-1]
        self._say(f"epoch {epoch}: top-1 {score.top1:.2%}, loss {score.loss:.4f}, {score.images} test images")
        return score

    def _checkpoint(self, epoch: int, last: bool) -> None:
        """Rank 0 keeps what is needed to go on, every so many epochs and at the end."""
        every = self.config.checkpoint.every_epochs
        if self.transport.rank == 0 and every and (last or epoch % every == 0):
            weights, momenta = self.model.state_dict(), self.optimizer.state_dict()
            state = {"epoch": epoch, "step": self.ledger.step, "model": weights, "optimizer": momenta}
            with self.ledger.checkpoint(last):
                checkpoint.save(self.record.path / "checkpoints", epoch, state, self.config.checkpoint.keep)

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
            print(text, flush=True)

    def _compile(self) -> None:
        """Run the model once each way before the clock starts; its statistics are put back afterwards."""
        kept = {name: value.clone() for name, value in self.model.state_dict().items()}
        size = self.config.data.image_size
        images = torch.zeros(largest_piece(self.config, self.transport), 3, size, size, device=self.transport.device)
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
