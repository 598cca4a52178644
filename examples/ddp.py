"""DistributedDataParallel with one of firetrain's reductions.

torchrun --nproc-per-node 2 examples/ddp.py ring
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from firetrain.ddp import Reducer, hook


def main(reduction: str | None) -> None:
    """Train a small network on images whose class is the brightest of four stripes."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 4))
    model = DistributedDataParallel(net)
    reducer = Reducer(reduction)
    model.register_comm_hook(reducer, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    draw = torch.Generator().manual_seed(100 + rank)  # other images on each rank
    for step in range(61):
        labels = torch.randint(4, (32,), generator=draw)
        images = torch.rand(32, 1, 16, 16, generator=draw)
        for image, label in zip(images, labels, strict=True):
            image[:, 4 * label : 4 * label + 4] += 0.5
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            mean = reducer.sum_(loss.detach().clone()).item() / ranks
            if rank == 0:
                print(f"step {step}: loss {mean:.4f}", flush=True)
    reducer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
