"""A training script of somebody who uses firetrain for nothing but the sums of gradients.

It saves where FIRETRAIN_RUN says, ends when FIRETRAIN_STOP appears, and goes on from what it has saved.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from images import squares
from nets import plain
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from firetrain.ddp import Reducer, hook


def main() -> None:
    """Train on squares until the last epoch, and print the accuracy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, default=720)
    given = parser.parse_args()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = DistributedDataParallel(plain(9))
    model.register_comm_hook(Reducer(), hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    run = Path(os.environ.get("FIRETRAIN_RUN", "."))
    saved, stop = run / "checkpoints" / "newest.pt", Path(os.environ.get("FIRETRAIN_STOP", "STOP"))
    epoch = 0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        epoch = state["epoch"]
    print(f"rank {rank} of {ranks} begins with epoch {epoch}", flush=True)
    train, test = squares(given.images)
    while epoch < given.epochs:
        order = np.random.default_rng(epoch).permutation(len(train))
        for first in range(0, len(order) - 16 * ranks + 1, 16 * ranks):
            images, labels = batch(train, order[first + rank : first + 16 * ranks : ranks])
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        epoch += 1
        asked = torch.tensor([float(stop.exists())])
        dist.all_reduce(asked)
        if rank == 0:
            saved.parent.mkdir(exist_ok=True)
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, saved.with_suffix(".draft"))
            saved.with_suffix(".draft").replace(saved)
        if asked.item():
            print(f"stopped after epoch {epoch}", flush=True)
            dist.destroy_process_group()
            return
    model.eval()
    images, labels = batch(test, np.arange(len(test)))
    right = (model.module(images).argmax(1) == labels).float().mean().item()
    print(f"{epoch} epochs: {right:.2%} of the test images are right", flush=True)
    dist.destroy_process_group()


def batch(images: object, numbers: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Images [count, 3, h, w] and their labels."""
    pairs = [images[int(number)] for number in numbers]
    pixels = np.stack([np.asarray(image) for image, _ in pairs])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 128 - 1, torch.tensor([label for _, label in pairs])


if __name__ == "__main__":
    main()
