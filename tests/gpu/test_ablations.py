"""The changes whose worth is measured on GPUs do not change what a model computes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from firetrain.bench.gpu import ablations, throughput
from firetrain.bench.gpu.one_rank import batch_of, gradient_of, model_options, models, one_rank, take_step
from firetrain.models.catalogue import model_by_name
from firetrain.models.dropout import Dropout, set_dropout_keys

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
CHANGES = (ablations._pooled_normalisation, ablations._joined_convolutions, ablations._four_channels)


@pytest.mark.parametrize("change", CHANGES)
def test_outputs_and_gradients_stay_the_same(change: Callable[[nn.Module], None]) -> None:
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    found = []
    for changed in (False, True):
        torch.manual_seed(2)
        model = model_by_name("googlenet_paper", stem="small", classes=10).eval().double()
        if changed:
            change(model)
        outputs = model(images.double())
        outputs.square().sum().backward()
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        found.append((outputs.detach(), torch.cat(gradients)))
    for plain, other in zip(*found, strict=True):
        assert plain.shape == other.shape and torch.allclose(plain, other, rtol=1e-9, atol=1e-12)
        assert plain.abs().max() > 1e-3


@pytest.mark.parametrize("change", (*CHANGES, ablations._unkeyed_dropout, ablations._wide_dropout))
def test_each_change_is_in_use(change: Callable[[nn.Module], None]) -> None:
    """It replaces a layer, or its forward pass."""
    model = model_by_name("googlenet_paper", stem="small")
    before = {name: (type(module), vars(module).get("forward")) for name, module in model.named_modules()}
    change(model)
    after = {name: (type(module), vars(module).get("forward")) for name, module in model.named_modules()}
    changed = [name for name in before if before[name] != after[name]]
    counts = dict(zip(CHANGES, (2, 9, 1), strict=True)) | {ablations._unkeyed_dropout: 1, ablations._wide_dropout: 1}
    assert len(changed) == counts[change], changed


def test_sgd_in_several_passes_makes_the_same_steps() -> None:
    found = []
    for change in (nullcontext, ablations._sgd_in_several_passes):
        worker = one_rank(CPU, "model.name=lenet", "data.image_size=28")
        with change():
            for _ in range(3):
                take_step(worker, batch_of(8, 28, CPU))
        found.append(torch.cat([value.flatten() for value in worker.state()["model"].values()]))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-7)


def test_a_hash_in_64_bits_drops_the_same_elements() -> None:
    x, dropout = torch.ones(3, 40), Dropout(0.3)
    set_dropout_keys(dropout, torch.tensor([5, -7, 1 << 31]))
    expected = dropout(x)
    ablations._wide_dropout(dropout)
    assert torch.equal(dropout(x), expected) and 0 < expected.count_nonzero() < x.numel()


@pytest.mark.parametrize(
    ("model", "images_per_s"), [("googlenet", 54_000), ("squeezenet1_1", 134_000), ("alexnet", 184_000)]
)
def test_the_ceilings_of_an_h200_are_those_worked_out_by_hand(
    model: str, images_per_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 788 TFLOP/s in bfloat16 and 4.8 TB/s; AlexNet is bound by its products, the others by memory."""
    for module in (throughput, __import__("firetrain.bench.gpu.one_rank", fromlist=["is_gpu"])):
        monkeypatch.setattr(module, "is_gpu", lambda device: True)
    found = throughput.most_images_per_s(GPU, model, 788e12, 4.8e12)
    assert found == pytest.approx(images_per_s, rel=0.03)
    twice = throughput.most_images_per_s(GPU, model, 2 * 788e12, 4.8e12)
    assert (twice > 1.5 * found) is (model == "alexnet")


def test_a_model_whose_images_are_normalised_before_has_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilers for CPUs would take minutes."""
    monkeypatch.setattr(torch, "compile", lambda module, **options: module)
    options, size = model_options(CPU, "googlenet_paper", 2)
    found = []
    for before in (False, True):
        worker = one_rank(CPU, *options)
        if before:
            worker._forward_backward._model = ablations._NormalisedBefore(worker.model, CPU)  # type: ignore[attr-defined]
        found.append(gradient_of(worker, batch_of(2, size, CPU), 2))
    assert torch.equal(*found) and found[0].norm() > 0
    assert ablations._images_per_s(CPU, 2, normalise_before=True) > 0


def test_a_step_of_the_check_is_a_whole_training_step() -> None:
    worker = one_rank(CPU, "model.name=lenet", "data.image_size=28")
    before = {name: value.clone() for name, value in worker.state()["model"].items()}
    take_step(worker, batch_of(8, 28, CPU))
    after = worker.state()["model"]
    assert all(not torch.equal(after[name], before[name]) for name in before)
    assert torch.isfinite(worker.finite()).all()


def test_the_check_has_the_three_models_on_a_gpu_and_small_ones_elsewhere() -> None:
    assert models(GPU) == ("googlenet", "squeezenet1_1", "alexnet") and models(CPU)[2] == "lenet"
    options, size = model_options(GPU, "googlenet", 512)
    assert size == 224 and "model.stem=imagenet" in options and "batch.global_size=512" in options
