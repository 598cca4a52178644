"""Models are compiled for all batch sizes before the first step, by the calls of training; compiling again is an error."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from firetrain.cluster import Identity, World
from firetrain.config import load_config
from firetrain.data.batch import blank_batch
from firetrain.errors import FiretrainError, UserError
from firetrain.models.catalogue import model_by_name
from firetrain.parallel import catalogue
from firetrain.parallel.compiled import blocks
from firetrain.parallel.worker import Worker
from firetrain.transport.transport import Transport

CPU = torch.device("cpu")


class Block(nn.Module):
    """A convolution and keyed dropout, whose code two instances share."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        from firetrain.models.dropout import Dropout

        self.convolution, self.dropout = nn.Conv2d(channels, filters, 3, padding=1), Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[images, channels, h, w] to [images, filters, h, w]."""
        return self.dropout(self.convolution(x).relu())  # type: ignore[no-any-return]


class Small(nn.Module):
    """Two blocks and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(Block(3, 4), Block(4, 8))
        self.classifier = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[images, 3, h, w] to [images, 10]."""
        return self.classifier(self.features(x).mean((2, 3)))  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _own_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def small(*arguments: object) -> nn.Module:
        torch.manual_seed(1)
        return Small()

    monkeypatch.setattr(catalogue, "make_model", small)
    yield
    torch._dynamo.config.error_on_recompile = False
    torch._dynamo.reset()


def worker(*overrides: str) -> Worker:
    config = load_config("squeezenet-digits", ["batch.global_size=5", *overrides]).config
    return catalogue.make_worker(config, 10, Transport("gloo", Identity(), World.even(1, 1), CPU, 60.0), {})


def gradient(trained: Worker, size: int) -> torch.Tensor:
    batch = blank_batch(size, 8)
    batch.images.copy_(torch.randint(256, batch.images.shape, generator=torch.Generator().manual_seed(size)))
    trained.backward(iter([batch]), [batch.samples], epoch=3)
    trained.finish(size)
    parameters = trained.model.parameters()  # type: ignore[attr-defined]
    return torch.cat([p.grad.flatten().clone() for p in parameters])


@pytest.mark.parametrize("unit", ["model", "block"])
def test_dropout_and_all_sizes_are_compiled_before_training_and_gradients_are_the_plain_ones(unit: str) -> None:
    plain, fast = worker(), worker("compile=true", f"compile_unit={unit}")
    before = {name: value.clone() for name, value in fast.state()["model"].items()}
    torch._dynamo.utils.counters.clear()
    fast.warm_up(8, training={5, 2}, evaluation={3})
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs == {"model": 1, "block": 4}[unit] * 3, (
        "for two sizes in training, and one in evaluation; a block more is the input"
    )
    assert all(torch.equal(value, before[name]) for name, value in fast.state()["model"].items())
    for size in (5, 2, 5):
        assert torch.allclose(gradient(fast, size), gradient(plain, size), rtol=1e-4, atol=1e-6)
    with fast.evaluating(), plain.evaluating(), torch.no_grad():
        images = torch.randint(256, (3, 3, 8, 8), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
        batch = blank_batch(3, 8)
        batch.images.copy_(images)
        ours, theirs = (one.predict(batch, batch.samples)[0] for one in (fast, plain))
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs, "nothing was compiled during training"
    with pytest.raises(FiretrainError, match=r"does not fit this batch.*set compile: false(?s:.*)size mismatch"):
        gradient(fast, 4)


def test_unreadable_images_may_change_the_size_of_a_batch() -> None:
    fast = worker("compile=true", "data.on_bad_image=skip")
    fast.warm_up(8, training={5}, evaluation={3})
    assert np.isfinite(gradient(fast, 4).numpy()).all()


def test_blocks_begin_with_parameters() -> None:
    layers = (nn.ReLU(), nn.Conv2d(3, 4, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 1), nn.Linear(4, 4), nn.ReLU())
    found = blocks(nn.Sequential(*layers))
    assert [[layers.index(module) for module in run] for run in found] == [[0, 1, 2, 3], [4], [5, 6]]
    assert [len(block) for block in blocks(model_by_name("alexnet").features)] == [3, 3, 2, 2, 3]  # type: ignore[arg-type]


def test_what_is_compiled_at_once_can_only_be_chosen_if_something_is() -> None:
    with pytest.raises(UserError, match=r"compile_unit.*compile: true"):
        load_config("squeezenet-digits", ["compile_unit=block"])
