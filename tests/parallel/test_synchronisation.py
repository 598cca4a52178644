"""No step makes the host wait for the device; tested on the CPU by refusing every operation that would wait on a GPU.

A GPU's host waits where it reads a value from the device (item, tolist, bool, float), where a result's shape depends on values
(nonzero, boolean masks), and where it copies to the device from memory that is not pinned (torch.tensor with a device).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from ranks import on_ranks
from torch.utils._python_dispatch import TorchDispatchMode

from firetrain.bench.step import make_batch
from firetrain.cluster import Identity, World
from firetrain.config import load_config
from firetrain.optim import lars
from firetrain.parallel.catalogue import make_worker
from firetrain.parallel.worker import Worker
from firetrain.training import evaluation
from firetrain.transport.transport import Transport

_READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::unique_dim"}
CPU = torch.device("cpu")


class Waited(AssertionError):
    """An operation for which the host of a GPU would wait."""


class _Refuse(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if function._schema.name in _READS:
            raise Waited(function._schema.name)
        masks = [x for x in arguments[1] if x is not None] if function._schema.name.startswith("aten::index") else []
        if any(getattr(mask, "dtype", None) == torch.bool for mask in masks if isinstance(mask, torch.Tensor)):
            raise Waited("a boolean mask")
        return function(*arguments, **(options or {}))


@contextmanager
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Context manager: operations that would make the host wait raise Waited."""

    def tensor(*arguments: Any, device: Any = None, **options: Any) -> Any:
        if device is not None:
            raise Waited("torch.tensor on a device")
        return made(*arguments, **options)

    def tolist(values: torch.Tensor) -> Any:
        raise Waited("tolist")

    made = torch.tensor
    with monkeypatch.context() as patched, _Refuse():
        patched.setattr(torch, "tensor", tensor)
        patched.setattr(torch.Tensor, "tolist", tolist)
        yield


def worker(*overrides: str) -> Worker:
    config = load_config("squeezenet-digits", ["batch.global_size=8", *overrides]).config
    return make_worker(config, 10, Transport("gloo", Identity(), World.even(1, 1), CPU, 60.0), {})


def step(one: Worker, images: float | torch.Tensor = 8.0) -> torch.Tensor:
    totals = one.backward(iter([make_batch(np.arange(8), 16, 10)]), [np.arange(8)], epoch=0)
    one.finish(images)
    finite = one.finite()
    one.update(0.01)
    return torch.stack([*totals, finite])


@pytest.mark.parametrize("model", ["squeezenet1_1", "googlenet", "alexnet"])
def test_a_step_does_not_wait(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = worker(f"model.name={model}")
    step(one)  # constants are made only once
    with refusing(monkeypatch):
        totals = step(one)
    assert totals[1] == 8 and totals[2] == 1 and totals[0] > 0


@pytest.mark.parametrize("optimizer", ["sgd", "lars", "lamb"])
def test_the_update_of_every_optimiser_does_not_wait(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lars, "is_gpu", lambda device: True)  # the fused passes that a GPU takes
    beta = ["optimizer.weight_decay=0.01"] if optimizer == "lamb" else []
    one = worker(f"optimizer.name={optimizer}", *beta)
    step(one)
    with refusing(monkeypatch):
        step(one)


def test_dividing_by_the_images_that_could_be_read_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = worker(), worker()
    gradients = []
    for each, images in ((one, torch.tensor(7.0, dtype=torch.float64)), (other, 7.0)):
        each.backward(iter([make_batch(np.arange(8), 16, 10)]), [np.arange(8)], epoch=0)
        with refusing(monkeypatch):
            each.finish(images)
        gradients.append([p.grad.clone() for p in each.model.parameters()])  # type: ignore[attr-defined]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_no_readable_image_divides_by_one() -> None:
    one = worker()
    one.backward(iter([make_batch(np.arange(8), 16, 10)]), [np.arange(8)], epoch=0)
    one.finish(torch.tensor(0.0, dtype=torch.float64))
    assert bool(one.finite())


def test_mirrored_images_do_not_make_the_host_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    one, batch = worker(), make_batch(np.arange(8), 16, 10)
    batch.flips[::2] = True
    with refusing(monkeypatch):
        images, _ = batch.on_device(CPU)
        one.backward(iter([batch]), [np.arange(8)], epoch=0)
    assert torch.equal(images[::2], batch.images[::2].flip(-1)) and torch.equal(images[1::2], batch.images[1::2])


def test_predicting_for_an_evaluation_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    one, batch = worker(), make_batch(np.arange(8), 16, 10)
    with one.evaluating(), torch.no_grad():
        (samples,) = one.evaluation_batches(8)
        one.predict(batch, samples)
        with refusing(monkeypatch):
            logits, labels = one.predict(batch, samples)
    assert logits.shape == (8, 10) and torch.equal(labels, batch.labels)


def placed_step(transport: Transport, strategy: str) -> list[float]:
    """Two steps under a strategy, of which the second must not wait; its loss, images and whether it was finite."""
    options = ["model.name=lenet", "batch.global_size=8", "reduction.name=ring", f"strategy.name={strategy}"]
    one = make_worker(load_config("squeezenet-digits", options).config, 10, transport, {})
    some = one.micro_batches(np.arange(8))
    with pytest.MonkeyPatch.context() as monkeypatch:
        for guard in (nullcontext(), refusing(monkeypatch)):
            batches = [make_batch(one.reads(piece), 16, 10) for piece in some]
            with guard:
                totals = one.backward(iter(batches), some, epoch=0)
                one.finish(8.0)
                finite = one.finite()
                one.update(0.01)
    found = [*transport.sum(totals).tolist(), float(finite)]
    one.close()
    return found


@pytest.mark.parametrize(
    "strategy", ["one-weird-trick", "tensor-parallel:split=inputs", "pipeline:stages=2,micro_batches=2"]
)
def test_a_step_under_a_strategy_does_not_wait(strategy: str) -> None:
    for loss, images, finite in on_ranks(2, placed_step, strategy):
        assert loss > 0 and images == 8 and finite == 1


def test_counting_right_answers_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = torch.eye(10)[:6], torch.arange(6)
    with refusing(monkeypatch):
        counts = evaluation._count(logits, labels)
    assert counts.tolist()[:2] == [6, 6] and counts.tolist()[3] == 6


def test_what_would_wait_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test of the check itself: each way to wait is noticed."""
    values = torch.arange(3.0)
    for wait in (
        values.sum().item,
        lambda: values.tolist(),
        values.nonzero,
        lambda: values[values > 1],
        lambda: bool(values[0]),
    ):
        with pytest.raises(Waited), refusing(monkeypatch):
            wait()
    with pytest.raises(Waited), refusing(monkeypatch):
        torch.tensor(1.0, device=CPU)
