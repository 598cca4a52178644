"""Measures the gain of each optimisation: training steps are timed with one of them changed.

Models are not compiled, because compilers would take most of the time; `throughput` has compiled models. Some changes are not
part of training, because they are kept only with a measured gain on a GPU: the three 1x1 convolutions of an inception module as
one, a first convolution with four input channels, and whole steps as CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from firetrain.bench.gpu import facts
from firetrain.bench.gpu.one_rank import batch_of, model_options, models, one_rank, paper_model, take_step
from firetrain.data.batch import Normalised
from firetrain.models.dropout import Dropout, dropouts_of
from firetrain.models.googlenet_paper import PaperInception
from firetrain.models.local_response_norm import LocalResponseNorm
from firetrain.optim import lars
from firetrain.parallel.worker import Worker
from firetrain.transport.device import is_gpu

_SMALL_BATCH = 16
_LOW = 0xFFFFFFFF
_OVERRIDES = {
    "float32": ("precision=float32",),
    "tf32": ("precision=tf32",),
    "contiguous": ("channels_last=false",),
    "deterministic": ("deterministic=true",),
}


def measure(device: torch.device) -> Iterator[tuple[str, Any]]:
    """Images/s of training, and for each change the ratio of its images/s to those of training, measured just before it."""
    count = 512 if is_gpu(device) else 2
    training = _images_per_s(device, count)
    yield "training", {"model": paper_model(device), "batch": count, "images_per_s": training}
    for name, overrides in _OVERRIDES.items():
        training = _images_per_s(device, count)
        yield name, _images_per_s(device, count, *overrides) / training
    changes: dict[str, Callable[[nn.Module], None]] = {
        "torch's dropout": _unkeyed_dropout,
        "dropout hashed in 64 bits": _wide_dropout,
        "torch's local response normalisation": _pooled_normalisation,
        "three 1x1 convolutions as one": _joined_convolutions,
        "first convolution with four channels": _four_channels,
    }
    for name, change in changes.items():
        training = _images_per_s(device, count)
        yield name, _images_per_s(device, count, change=change) / training
    largest = models(device)[-1]
    training = _images_per_s(device, count, f"model.name={largest}")
    with _sgd_in_several_passes():
        yield f"SGD in several passes, {largest}", _images_per_s(device, count, f"model.name={largest}") / training
    if is_gpu(device):
        compiled = _images_per_s(device, count, "compile=true")
        yield "compiled", compiled / _images_per_s(device, count)
        yield "compiled, normalised before", _images_per_s(device, count, normalise_before=True) / compiled
        # last, because torch stays on the stream of a capture that fails
        for batch in (_SMALL_BATCH, count):
            yield f"steps as CUDA graphs, batch {batch}", _graphed(device, batch, _images_per_s(device, batch))


def _images_per_s(
    device: torch.device,
    count: int,
    *overrides: str,
    change: Callable[[nn.Module], None] = lambda model: None,
    normalise_before: bool = False,
) -> float:
    worker, size = _worker(device, count, *overrides)
    change(worker.model)
    if normalise_before:
        worker._forward_backward._model = _NormalisedBefore(worker.model, device)  # type: ignore[attr-defined]
    batch = batch_of(count, size, device)
    calls, tries = (5, 3) if is_gpu(device) else (1, 1)
    seconds = facts.steady_s(lambda: take_step(worker, batch), device, calls, tries)
    worker.close()
    return count / seconds


@contextmanager
def _sgd_in_several_passes() -> Iterator[None]:
    """Update weights without torch's fused kernel, which reads and writes each of them once."""

    def separate(
        weights: list[Tensor], gradients: list[Tensor], buffers: list[Tensor], rate: float, decay: float, momentum: float,
        *, nesterov: bool = False,
    ) -> None:  # fmt: skip
        options = {"momentum": momentum, "nesterov": nesterov}
        lars.Lars.in_several_passes(options, weights, gradients, buffers, rate, decay, None)

    fused, lars.fused = lars.fused, separate  # type: ignore[assignment]
    try:
        yield
    finally:
        lars.fused = fused


class _NormalisedBefore(nn.Module):
    """A compiled model of normalised images; their normalisation is not compiled with it."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        super().__init__()
        self._normalise, self._model = Normalised(nn.Identity(), device), torch.compile(model, dynamic=False)

    def forward(self, images: Tensor) -> Any:
        """Logits of uint8 images."""
        return self._model(self._normalise(images))


def _worker(device: torch.device, count: int, *overrides: str) -> tuple[Worker, int]:
    options, size = model_options(device, paper_model(device), count)
    return one_rank(device, *options, *overrides), size


def _unkeyed_dropout(model: nn.Module) -> None:
    """Draw masks by torch's generator, not by a hash of (seed, step, image, element)."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, Dropout):
                setattr(module, name, nn.Dropout(child.p))


def _wide_dropout(model: nn.Module) -> None:
    """Compute the hash of masks in 64-bit integers, of which the low 32 bits count."""
    for module in dropouts_of(model):
        module.forward = partial(_drop, module)  # type: ignore[method-assign]


def _drop(dropout: Dropout, x: Tensor) -> Tensor:
    assert dropout.keys is not None
    positions = torch.arange(x.shape[1:].numel(), device=x.device) + (dropout.layer << 24)
    words = _mix(_mix(positions)[None, :] ^ (dropout.keys.long() & _LOW)[:, None])
    return x * (words >= int(dropout.p * 2**32)).view(x.shape) / (1 - dropout.p)


def _mix(words: Tensor) -> Tensor:
    """The hash of models/dropout.py."""
    words = (words ^ (words >> 16)) * 0x7FEB352D & _LOW
    words = (words ^ (words >> 15)) * 0x846CA68B & _LOW
    return words ^ (words >> 16)


def _pooled_normalisation(model: nn.Module) -> None:
    for name, child in model.named_children():
        if isinstance(child, LocalResponseNorm):
            setattr(model, name, nn.LocalResponseNorm(child.size, child.alpha, child.beta))


def _joined_convolutions(model: nn.Module) -> None:
    """Compute the three 1x1 convolutions that share an input as one convolution with their weights side by side."""

    def joined(inception: PaperInception) -> Callable[[Tensor], Tensor]:
        first = [inception.branch1, inception.branch2[0], inception.branch3[0]]

        def forward(x: Tensor) -> Tensor:
            weight, bias = torch.cat([one.weight for one in first]), torch.cat([one.bias for one in first])  # type: ignore[misc]
            outputs = nn.functional.conv2d(x, weight, bias).split([one.out_channels for one in first], 1)
            two, three = (
                branch[2](part.relu())
                for branch, part in zip((inception.branch2, inception.branch3), outputs[1:], strict=True)
            )
            return torch.cat([outputs[0], two, three, inception.branch4(x)], 1).relu()

        return forward

    for module in model.modules():
        if isinstance(module, PaperInception):
            module.forward = joined(module)  # type: ignore[assignment]


def _four_channels(model: nn.Module) -> None:
    """Give the first convolution a fourth input channel of zeros, because kernels need multiples of 4 channels."""
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))

    def forward(x: Tensor) -> Tensor:
        pad = (0, 0, 0, 0, 0, 1)
        weight = nn.functional.pad(first.weight, pad)
        return nn.functional.conv2d(nn.functional.pad(x, pad), weight, first.bias, first.stride, first.padding)

    first.forward = forward  # type: ignore[assignment]


def _graphed(device: torch.device, count: int, training: float) -> float | str:
    """The ratio for steps captured once as a CUDA graph and replayed, or the reason why capture failed."""
    try:
        worker, size = _worker(device, count)
        batch = batch_of(count, size, device)
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                take_step(worker, batch)
        torch.cuda.current_stream().wait_stream(stream)
        worker._forward_backward._has_dropout = False  # type: ignore[attr-defined] # the keys of the last step stay in use
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            take_step(worker, batch)
        return count / facts.steady_s(graph.replay, device, calls=5) / training
    except RuntimeError as error:
        return str(error).partition("\n")[0]
