"""A script that trains with Accelerate, with firetrain's hook or without it, and saves the weights of rank 0."""

import sys

import torch
from accelerate import Accelerator
from torch import nn

from firetrain.ddp import Reducer, hook


def main(reduction: str, out: str) -> None:
    """Train a small network for ten steps."""
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    if reduction != "none":
        model.register_comm_hook(Reducer(reduction), hook)
    draws = torch.Generator().manual_seed(accelerator.process_index)
    for _ in range(10):
        optimizer.zero_grad()
        accelerator.backward(model(torch.randn(8, 16, generator=draws)).square().mean())
        optimizer.step()
    if accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), out)
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
