"""The data-parallel worker fulfils the contract of Worker on any number of ranks."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from ranks import on_ranks
from torch import nn

from firetrain.config import Config, load_config
from firetrain.data.batch import Batch, blank_batch
from firetrain.data.catalogue import open_dataset
from firetrain.data.order import Samples
from firetrain.parallel.catalogue import make_worker, replicate
from firetrain.parallel.data_parallel import DataParallel, largest_batch
from firetrain.parallel.worker import Worker
from firetrain.records.parts import COMPUTE, DATA, Part
from firetrain.training.input import Input
from firetrain.transport.checksum import checksum
from firetrain.transport.transport import Transport

SMALL = ["model.name=squeezenet_mini", "data.image_size=16", "reduction.bucket_mib=0.1"]


def config_of(*overrides: str) -> Config:
    return load_config("squeezenet-digits", [*SMALL, *overrides]).config


def batches_of(config: Config, transport: Transport, worker: Worker, samples: Samples) -> Iterator[Batch]:
    images = Input(config.data, config.seed, open_dataset(config.data), transport, worker.largest_batch)
    return images.training_batches(worker.micro_batches(samples), 0)


def digest(worker: DataParallel) -> int:
    return int(checksum(list(worker.model.parameters())))


@pytest.mark.parametrize(
    ("batch", "ranks", "most", "largest"), [(32, 1, None, 32), (32, 3, None, 11), (32, 3, 4, 4), (2, 4, None, 1), (8, 2, 100, 4)]
)  # fmt: skip
def test_the_largest_batch_of_a_rank(batch: int, ranks: int, most: int | None, largest: int) -> None:
    section = config_of(f"batch.global_size={batch}", f"batch.per_rank_max={'null' if most is None else most}").batch
    assert largest_batch(section, ranks) == largest


def shares(transport: Transport, batch: int) -> list[list[int]]:
    config = config_of(f"batch.global_size={batch}", "batch.per_rank_max=3")
    worker = make_worker(config, 10, transport, {})
    found = [piece.tolist() for piece in worker.micro_batches(np.arange(100, 100 + batch))]
    assert all(len(piece) <= worker.largest_batch for piece in found)
    worker.close()
    return found


@pytest.mark.parametrize(("ranks", "batch"), [(1, 7), (3, 10), (4, 3)])
def test_micro_batches_of_all_ranks_are_the_global_batch_each_image_once(ranks: int, batch: int) -> None:
    every = on_ranks(ranks, shares, batch)
    assert [image for own in every for piece in own for image in piece] == list(range(100, 100 + batch))
    assert all(own for own in every), "a rank without images has an empty piece, and takes part"


def packed(state: dict[str, Any]) -> bytes:
    """A state as bytes, which can be passed to another process."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def unpacked(content: bytes) -> dict[str, Any]:
    return dict(torch.load(io.BytesIO(content), weights_only=True))


def stepped(transport: Transport, overrides: list[str], steps: int) -> dict[str, Any]:
    """The facts and results of a worker after some steps of 10 images each."""
    config = config_of("batch.global_size=10", *overrides)
    worker = make_worker(config, 10, transport, {})
    laps: list[Part] = []
    losses = []
    for step in range(steps):
        samples = np.arange(10 * step, 10 * step + 10)
        batches = batches_of(config, transport, worker, samples)
        totals = worker.backward(batches, worker.micro_batches(samples), 0, laps.append)
        worker.finish(10.0)
        assert bool(worker.finite())
        worker.update(0.05)
        losses.append(float(transport.sum(totals)[0]) / 10)
    worker.check_bits(steps)
    found = {
        "losses": losses,
        "laps": laps,
        "digest": digest(worker),
        "facts": worker.facts(),
        "state": packed(worker.state()),
    }
    found |= {"describe": worker.describe(), "parameters": worker.parameters}
    worker.close()
    return found


def test_steps_are_the_same_on_any_number_of_ranks_and_ranks_end_with_the_same_bits() -> None:
    (alone,) = on_ranks(1, stepped, [], 4)
    for ranks in (2, 3):
        found = on_ranks(ranks, stepped, [], 4)
        assert found[0]["losses"] == pytest.approx(alone["losses"], rel=1e-4)
        assert len({one["digest"] for one in found}) == 1


def test_a_lap_ends_when_a_micro_batch_has_come_and_when_it_is_done() -> None:
    (alone,) = on_ranks(1, stepped, ["batch.per_rank_max=4"], 2)
    assert alone["laps"] == [DATA, COMPUTE] * 3 * 2


def test_facts_and_words_tell_the_reduction_and_its_buckets() -> None:
    found = on_ranks(2, stepped, ["reduction.name=ring"], 1)[0]
    assert found["facts"]["name"] == "ring" and sum(found["facts"]["buckets_bytes"]) == 4 * found["parameters"]
    assert found["describe"] == f"reduction ring, {len(found['facts']['buckets_bytes'])} buckets"


def resumed(transport: Transport, content: bytes) -> dict[str, Any]:
    state = unpacked(content)
    config = config_of("batch.global_size=10")
    worker = make_worker(config, 10, transport, state)
    before = digest(worker)
    samples = np.arange(50, 60)
    worker.backward(batches_of(config, transport, worker, samples), worker.micro_batches(samples), 0)
    worker.finish(10.0)
    worker.update(0.05)
    weights = torch.cat([p.detach().flatten() for p in worker.model.parameters()])
    return {"before": before, "weights": weights.numpy(), "bucket_bytes": worker.state()["bucket_bytes"]}


def test_a_state_is_gone_on_with_on_another_number_of_ranks_momentum_and_buckets_included() -> None:
    (begun,) = on_ranks(1, stepped, [], 3)
    (alone,) = on_ranks(1, resumed, begun["state"])
    together = on_ranks(3, resumed, begun["state"])
    assert all(one["before"] == begun["digest"] for one in (alone, *together))
    assert together[0]["bucket_bytes"] == unpacked(begun["state"])["bucket_bytes"]
    assert together[0]["weights"] == pytest.approx(alone["weights"], rel=1e-4, abs=1e-6)
    (without,) = on_ranks(1, resumed, packed(without_momentum(unpacked(begun["state"]))))
    assert np.abs(without["weights"] - alone["weights"]).max() > 1e-4, "without the momentum the step would be another"


def without_momentum(state: dict[str, Any]) -> dict[str, Any]:
    """The same state, but with the optimiser's state before its first step."""
    return {**state, "optimizer": {**state["optimizer"], "state": {}}}


def evaluated(transport: Transport) -> dict[str, Any]:
    config = load_config("googlenet-digits", ["data.image_size=32", "batch.global_size=8"]).config
    worker = make_worker(config, 10, transport, {})
    norm = next(module for module in worker.model.modules() if isinstance(module, nn.BatchNorm2d))
    assert norm.running_mean is not None
    norm.running_mean.fill_(float(transport.rank))
    images = torch.randint(256, (3, 3, 32, 32), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    with worker.evaluating(), torch.no_grad():
        batch = blank_batch(3, 32)
        batch.images.copy_(images)
        inside, (logits, _) = worker.model.training, worker.predict(batch, batch.samples)
    with pytest.raises(RuntimeError, match="spoilt"), worker.evaluating():
        raise RuntimeError("spoilt")
    return {
        "inside": inside,
        "after": worker.model.training,
        "mean": float(norm.running_mean[0]),
        "logits": logits.numpy(),
    }


def test_evaluation_has_the_mean_of_all_ranks_statistics_and_training_goes_on_after_it() -> None:
    found = on_ranks(3, evaluated)
    for one in found:
        assert (one["inside"], one["after"], one["mean"]) == (False, True, 1.0)
        assert one["logits"].shape == (3, 10) and np.array_equal(one["logits"], found[0]["logits"])


def apart(transport: Transport) -> tuple[bool, bool]:
    """Whether the gradients of ranks differ without communication, and agree with it."""
    config = config_of("batch.global_size=10")
    worker = make_worker(config, 10, transport, {})

    def gradient() -> torch.Tensor:
        worker.backward(batches_of(config, transport, worker, np.arange(10)), [np.arange(10)], 0)
        worker.finish(10.0)
        return torch.cat([p.grad.flatten() for p in worker.model.parameters() if p.grad is not None])

    with worker.unreduced():
        own = transport.gather(gradient().clone())
    summed = transport.gather(gradient().clone())
    return torch.equal(own[0], own[1]), torch.equal(summed[0], summed[1])


def test_steps_without_communication_leave_every_rank_its_own_gradient() -> None:
    assert on_ranks(2, apart) == [(False, True)] * 2


def replicas(transport: Transport) -> tuple[list[float], bool]:
    """All ranks but rank 1 have the same seed; rank 1 must get the weights of rank 0."""
    config = config_of(f"seed={1 + (transport.rank == 1)}")
    model = replicate(config, 10, transport)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return weights[:50].tolist(), model.training


def test_replicas_begin_with_the_weights_of_rank_0() -> None:
    found = on_ranks(3, replicas)
    assert found[0] == found[1] == found[2] and found[0][1]
