"""FSDP2 sums the gradients of replicas by a reduction, and trains like a single process."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from ranks import on_ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from firetrain.ddp import Reducer
from firetrain.transport.transport import Transport

Array = np.ndarray[Any, np.dtype[Any]]
STEPS, BATCH = 5, 4


def make() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 5))


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    seeded = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(BATCH, 16, generator=seeded), torch.randint(5, (BATCH,), generator=seeded)


def train(transport: Transport, reduction: str) -> list[Array]:
    """The whole weights after some steps on two replicas of two shards."""
    mesh, model = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")), make()
    for layer in (model[0], model[2], model[4], model):
        fully_shard(layer, mesh=mesh["shard"])
    reducer = Reducer(reduction, group=mesh["replicate"].get_group())

    def average(number: int, gradient: Tensor) -> None:
        reducer.sum_(gradient, number).div_(2)

    for number, module in enumerate(one for one in model.modules() if isinstance(one, FSDPModule)):
        module.set_all_reduce_hook(partial(average, number))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, labels = batch(step, transport.rank)
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    reducer.close()
    return [parameter.full_tensor().detach().numpy() for parameter in model.parameters()]


@pytest.mark.parametrize("reduction", ["ring", "tree"])
def test_replicas_of_shards_train_like_one_process_with_the_whole_batch(reduction: str) -> None:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, labels = (torch.cat(parts) for parts in zip(*(batch(step, rank) for rank in range(4)), strict=True))
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    for found in on_ranks(4, train, reduction):
        for mine, expected in zip(found, model.parameters(), strict=True):
            np.testing.assert_allclose(mine, expected.detach().numpy(), rtol=0, atol=1e-6)
