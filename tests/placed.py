"""Steps of training under a strategy, on real ranks."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from firetrain.config import Config, load_config
from firetrain.data.batch import Batch
from firetrain.data.catalogue import open_dataset
from firetrain.data.order import Samples
from firetrain.parallel.catalogue import make_worker
from firetrain.parallel.worker import Worker
from firetrain.training.input import Input
from firetrain.transport.transport import Transport

BATCH = 10


def config_of(*overrides: str) -> Config:
    given = [
        "model.name=lenet",
        f"batch.global_size={BATCH}",
        "reduction.bucket_mib=0.5",
        "reduction.name=ring",
        *overrides,
    ]
    return load_config("squeezenet-digits", given).config


def batches_of(config: Config, transport: Transport, worker: Worker, some: Sequence[Samples]) -> Iterator[Batch]:
    images = Input(config.data, config.seed, open_dataset(config.data), transport, worker.largest_batch)
    return images.training_batches((worker.reads(one) for one in some), 0)


def trained(
    transport: Transport, overrides: Sequence[str], steps: range, content: bytes = b"", batch: int = BATCH
) -> dict[str, Any]:
    """Losses of some steps of `batch` images or one fewer, the score of 13 test images, and the state afterwards."""
    config = config_of(*overrides)
    state = torch.load(io.BytesIO(content), weights_only=True) if content else {}
    worker, losses = make_worker(config, 10, transport, state), []
    for step in steps:
        some = worker.micro_batches(
            np.arange(batch * step, batch * (step + 1) - step % 2)
        )  # every other batch is smaller
        totals = worker.backward(batches_of(config, transport, worker, some), some, 0)
        count = float(batch - step % 2)
        worker.finish(count)
        assert bool(worker.finite())
        worker.update(0.02)
        total, images = transport.sum(totals).tolist()
        assert images == count
        losses.append(total / count)
    worker.check_bits(len(steps))
    with worker.evaluating(), torch.no_grad():
        some = worker.evaluation_batches(13)
        found = [worker.predict(*pair) for pair in zip(batches_of(config, transport, worker, some), some, strict=True)]
    right = sum(float((logits.argmax(1) == labels).sum()) for logits, labels in found if len(labels))
    counted = transport.sum(torch.tensor([right, float(sum(len(labels) for _, labels in found))])).tolist()
    packed = io.BytesIO()
    torch.save(worker.state(), packed)
    worker.close()
    return {"losses": losses, "score": counted, "state": packed.getvalue() if transport.rank == 0 else b""}


def unpacked(found: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint of what `trained` returned."""
    state: dict[str, Any] = torch.load(io.BytesIO(found["state"]), weights_only=True)
    return state
