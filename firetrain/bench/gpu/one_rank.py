"""A worker that is alone on its device, and batches for it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from firetrain.bench.step import make_batch
from firetrain.cluster import Identity, World
from firetrain.config import load_config
from firetrain.data.batch import Batch
from firetrain.parallel.catalogue import make_worker
from firetrain.parallel.worker import Worker
from firetrain.transport.device import backend_of, is_gpu
from firetrain.transport.transport import Transport

RATE = 0.01


def one_rank(device: torch.device, *overrides: str, classes: int = 10) -> Worker:
    """A worker of squeezenet-digits with these changes; by default its batch has eight images."""
    config = load_config("squeezenet-digits", ["batch.global_size=8", "cluster.ranks_per_node=1", *overrides]).config
    return make_worker(config, classes, Transport(backend_of(device), Identity(), World.even(1, 1), device, 60.0), {})


def models(device: torch.device) -> tuple[str, ...]:
    """The models to check; on the CPU a small one in the place of each but GoogLeNet, which is the only one with batch norm."""
    return ("googlenet", "squeezenet1_1", "alexnet") if is_gpu(device) else ("googlenet", "squeezenet_mini", "lenet")


def paper_model(device: torch.device) -> str:
    """GoogLeNet without batch norm; on the CPU a small network of its modules."""
    return "googlenet_paper" if is_gpu(device) else "googlenet_mini"


def model_options(device: torch.device, model: str, batch: int) -> tuple[list[str], int]:
    """The changes for a model at its full size on a GPU, and at toy size on the CPU; and the size of its images in pixels."""
    stem, size = ("imagenet", 224) if is_gpu(device) else ("small", 28)
    return [
        f"model.name={model}", f"model.stem={stem}", f"data.image_size={size}", f"batch.global_size={batch}",
        "precision=bfloat16",
    ], size  # fmt: skip


def batch_of(count: int, size: int, device: torch.device, *, resident: bool = True) -> Batch:
    """Random images on the device; with `resident=False` in the host's memory, which is pinned for a GPU."""
    if not is_gpu(device):
        return make_batch(np.arange(count), size, 10)
    # drawn where they are needed: numpy takes seconds for a large batch
    where = device if resident else torch.device("cpu")
    images = torch.randint(256, (count, 3, size, size), dtype=torch.uint8, device=where)
    images, labels = images.contiguous(memory_format=torch.channels_last), torch.arange(count, device=where) % 10
    if not resident:
        images, labels = images.pin_memory(), labels.pin_memory()
    return Batch(images, labels, np.arange(count), np.zeros(count, bool))


def take_step(worker: Worker, batch: Batch) -> None:
    """One whole training step on `batch`."""
    worker.backward(iter([batch]), [batch.samples], epoch=0)
    worker.finish(float(len(batch)))
    worker.finite()
    worker.update(RATE)


def gradient_of(worker: Worker, batch: Batch, images: int) -> Tensor:
    """The gradient of the mean loss over `images` images, of which `batch` are this rank's, float64 [parameters]."""
    worker.backward(iter([batch]), [batch.samples], epoch=0)
    worker.finish(float(images))
    return torch.cat([p.grad.detach().flatten().double() for p in worker.model.parameters() if p.grad is not None])
