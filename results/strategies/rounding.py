"""How far rounding alone moves the losses of LeNet on MNIST in 20 steps of 64 images, in one process.

Initial weights are changed by at most one unit in the last place, twenty times for each seed. A max pooling or ReLU whose
inputs are almost equal may then choose another one, and its gradient takes another way: trainings in which this happens are told
apart. Usage: python results/strategies/rounding.py MNIST
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_max_pool2d, max_pool2d

from firetrain.config import load_config
from firetrain.data.catalogue import open_dataset
from firetrain.data.images import Arrays
from firetrain.models.catalogue import model_by_name

STEPS, BATCH, SEEDS, TRIALS = 20, 64, (1, 2, 3), 20
MEAN, DEVIATION = 0.1307, 0.3081


def main(mnist: Path) -> None:
    """Print a line for each seed."""
    torch.set_num_threads(1)
    train = open_dataset(load_config("lenet-mnist", [f"data.root={mnist}"]).config.data).train
    assert isinstance(train, Arrays)
    for seed in SEEDS:
        order = np.random.default_rng(seed).permutation(len(train.labels))[: STEPS * BATCH]
        pixels = torch.from_numpy(train.pixels[order]).unsqueeze(1).expand(-1, 3, -1, -1)
        images, labels = (
            ((pixels / 255 - MEAN) / DEVIATION).split(BATCH),
            torch.from_numpy(train.labels[order]).split(BATCH),
        )
        losses, choices = trained(seed, 0, images, labels)
        alike, otherwise = list[float](), list[float]()
        for trial in range(1, TRIALS + 1):
            found, chosen = trained(seed, trial, images, labels)
            largest = max(abs(other / loss - 1) for other, loss in zip(found, losses, strict=True))
            same = all(map(torch.equal, chosen, choices))
            (alike if same else otherwise).append(largest)
        print(
            f"seed {seed}: {in_words(alike)} with the same choices, {in_words(otherwise)} with another one", flush=True
        )


def in_words(largest: list[float]) -> str:
    """How many trainings there are, and how far their losses are from those of the first."""
    apart = f" (losses differ by {min(largest):.0e} to {max(largest):.0e})" if largest else ""
    return f"{len(largest)} trainings{apart}"


def trained(
    seed: int, trial: int, images: tuple[Tensor, ...], labels: tuple[Tensor, ...]
) -> tuple[list[float], list[Tensor]]:
    """The loss of each step, and what each max pooling and ReLU chose in it; trial 0 leaves the weights as they are."""
    torch.manual_seed(seed)
    model = model_by_name("lenet", classes=10, stem="small").train()
    if trial:
        draw = torch.Generator().manual_seed(trial)
        with torch.no_grad():
            for parameter in model.parameters():
                sign = torch.randint(-1, 2, parameter.shape, generator=draw)
                parameter.mul_(1 + sign * torch.finfo(torch.float32).eps / 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    losses, choices = list[float](), list[Tensor]()
    model.conv1.register_forward_hook(lambda *values: choices.append(max_pool2d(values[-1], 2, return_indices=True)[1]))
    model.conv2.register_forward_hook(
        lambda *values: choices.append(adaptive_max_pool2d(values[-1], 4, return_indices=True)[1])
    )
    model.fc1.register_forward_hook(lambda *values: choices.append(values[-1] > 0))
    for batch, numbers in zip(images, labels, strict=True):
        loss = nn.functional.cross_entropy(model(batch), numbers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, choices


if __name__ == "__main__":
    main(Path(sys.argv[1]))
