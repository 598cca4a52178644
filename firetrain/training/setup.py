"""Sets up training on one rank: makes everything that the loop works with from a config."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from firetrain.cluster import Clock, SystemClock
from firetrain.config import Config
from firetrain.data.catalogue import open_dataset
from firetrain.data.images import Dataset
from firetrain.data.order import steps_per_epoch
from firetrain.errors import UserError
from firetrain.optim.learning_rate import LearningRate
from firetrain.parallel.catalogue import make_worker
from firetrain.parallel.worker import Worker
from firetrain.records import Run
from firetrain.training.checkpoints import Checkpoints
from firetrain.training.divergence import Divergence
from firetrain.training.input import Input
from firetrain.training.ledger import Ledger
from firetrain.training.log import Log
from firetrain.training.loop import Training
from firetrain.training.stagnation import Stagnation
from firetrain.training.stop import Stop
from firetrain.transport.device import without_effect
from firetrain.transport.transport import Transport
from firetrain.words import counted


def set_up(
    config: Config,
    transport: Transport,
    record: Run,
    clock: Clock | None = None,
    stop_marks: Sequence[Path] | None = None,
    began: float | None = None,
    dataset: Dataset | None = None,
) -> Training:
    """The training of a run on this rank, from the run's newest checkpoint if there is one. Collective.

    - `record`: the run's directory; `began`: see Ledger.
    - `stop_marks`: files whose presence asks for a stop; default: the run's own.
    - `dataset`: default: the config's.
    """
    clock = clock or SystemClock()
    checkpoints = Checkpoints(config.checkpoint, record, transport)
    state = checkpoints.newest()
    ledger = started(Ledger(record, transport, clock, began), record, state)
    log = Log(transport, record, ledger)
    log.track(config)
    dataset = dataset or _same_on_all_ranks(open_dataset(config.data), config, transport)
    worker = make_worker(config, len(dataset.classes), transport, state)
    training = Training(
        config=config,
        transport=transport,
        clock=clock,
        log=log,
        ledger=ledger,
        checkpoints=checkpoints,
        stop=Stop(record, transport, ledger, checkpoints, [record.stop_mark] if stop_marks is None else stop_marks),
        worker=worker,
        input=Input(config.data, config.seed, dataset, transport, worker.largest_batch),
        rate=LearningRate.of(config, steps_per_epoch(len(dataset.train.labels), config.batch.global_size)),
        divergence=Divergence(transport.device),
        stagnation=Stagnation(len(dataset.classes)),
    )
    for line in _announcement(training, resumes=bool(state)):
        training.log.say(line)
    return training


def _same_on_all_ranks(dataset: Dataset, config: Config, transport: Transport) -> Dataset:
    """The dataset; UserError on all ranks if it is code of the user's own that gives some of them other labels."""
    if config.data.own and transport.size > 1:
        seen = transport.gather_objects(labels_of(dataset))
        for rank, labels in enumerate(seen):
            refuse_other_labels(config, rank, labels, seen[0])
    return dataset


def labels_of(dataset: Dataset) -> list[list[int]]:
    """The number of labels of both splits, and a checksum of them."""
    labels = (np.asarray(split.labels, np.int64) for split in (dataset.train, dataset.test))
    return [[len(one), zlib.crc32(one.tobytes())] for one in labels]


def refuse_other_labels(config: Config, rank: int, labels: list[list[int]], first: list[list[int]]) -> None:
    """UserError unless the labels of a rank are those of rank 0; both as from `labels_of`."""
    if labels != first:
        raise UserError(
            f"{config.data.name}: rank {rank} has other images than rank 0, or in another order: which ones, and their order, "
            "must not depend on the process, as the order of a set does"
        )


def started(ledger: Ledger, record: Run, state: Mapping[str, Any]) -> Ledger:
    """The ledger, which goes on from a checkpoint's clocks, or from what an attempt without a checkpoint wrote."""
    if state or (record.path / "metrics.jsonl").exists():
        ledger.resume(state.get("clocks"))
    ledger.start()
    return ledger


def _announcement(training: Training, *, resumes: bool) -> Iterator[str]:
    """What is about to be trained: the model, the data, the ranks, the learning rate, and settings without effect."""
    if resumes:
        yield f"resuming after step {training.ledger.step}"
    config, data, transport = training.config, training.input.dataset, training.transport
    yield model_and_data(config.model.name, training.worker, data)
    threads = f"{counted(torch.get_num_threads(), 'compute thread')} per rank"
    yield f"{transport.world} over {transport.name}, {training.worker.describe()}; {threads}"
    yield f"learning rate {training.rate.explain(config.batch.global_size)}"
    for note in without_effect(transport.device, config.precision, deterministic=config.deterministic):
        yield f"note: {note}"


def model_and_data(model: str, worker: Worker, data: Dataset) -> str:
    """One line for the log: the model with its parameters, and the data with its images and classes."""
    return (
        f"{model}, {worker.parameters:,} parameters, on {data.name}: {len(data.train.labels):,} "
        f"training and {len(data.test.labels):,} test images, {len(data.classes)} classes"
    )
