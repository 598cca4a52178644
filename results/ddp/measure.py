"""Step times of a script's DistributedDataParallel with firetrain's hook beside those without, on four nodes at 1 Gbit/s.

The model is a stranger's residual network (tests/stranger/nets.py). Models take turns, in changing order; times are those of the
slowest rank. Nothing is timed unless all models change their weights alike. As root, with iproute2:

python tests/network.py --nodes 4 --rate 1gbit --cpus 0.475 python results/ddp/measure.py
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from firetrain.ddp import Reducer, hook

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "stranger"))

from nets import ResNet  # noqa: E402

REDUCTIONS = (None, "native", "ring", "halving-doubling", "tree", "direct", "powersgd:rank=4")
EXACT = 6
WIDTH, PIXELS, IMAGES, ROUNDS = 192, 16, 4, 12
BUCKET_MIB = 1


def main() -> None:
    """Time all models; rank 0 writes steps.json and prints a table."""
    rank, ranks = int(os.environ["FIRETRAIN_RANK"]), int(os.environ["FIRETRAIN_WORLD_SIZE"])
    host = os.environ["FIRETRAIN_RENDEZVOUS_HOST"]
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"] = host
    dist.init_process_group("gloo", init_method=f"tcp://{host}:29511", rank=rank, world_size=ranks)
    draw = torch.Generator().manual_seed(rank)
    images, labels = (
        torch.randn(IMAGES, 3, PIXELS, PIXELS, generator=draw),
        torch.randint(10, (IMAGES,), generator=draw),
    )
    models, reducers = {}, []
    for name in REDUCTIONS:
        torch.manual_seed(1)
        model = DistributedDataParallel(ResNet(width=WIDTH), bucket_cap_mb=BUCKET_MIB)
        if name:
            reducers.append(Reducer(name))
            model.register_comm_hook(reducers[-1], hook)
        models[str(name or "without the hook")] = model
    apart = [change(model, images, labels) for model in models.values()]
    assert all(torch.allclose(one, apart[0], rtol=0, atol=1e-6) for one in apart[:EXACT]), "weights change otherwise"
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for number in range(ROUNDS + 1):
        order = list(models)
        random.Random(number).shuffle(order)
        for name in order:
            taken = timed(models[name], images, labels)
            seconds[name] += [taken] if number else []  # the first round warms up
    if rank == 0:
        parameters = sum(p.numel() for p in models["without the hook"].parameters())
        (HERE / "steps.json").write_text(
            json.dumps({"parameters": parameters, "ranks": ranks, "step_s": seconds}, indent=1) + "\n"
        )
        show(seconds)
    for reducer in reducers:
        reducer.close()
    dist.destroy_process_group()


def step(model: nn.Module, images: Tensor, labels: Tensor, rate: float = 1e-3) -> None:
    """A step of plain SGD."""
    model.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= rate * parameter.grad


def change(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """How two steps change the weights; torch rebuilds its buckets after the first one."""
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    for _ in range(2):
        step(model, images, labels)
    return torch.cat([p.detach().flatten() for p in model.parameters()]) - before


def timed(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Seconds of a step on the slowest rank."""
    dist.barrier()
    began_s = time.perf_counter()
    step(model, images, labels)
    taken = torch.tensor([time.perf_counter() - began_s])
    dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    return float(taken)


def show(seconds: dict[str, list[float]]) -> None:
    """Print a Markdown table: medians, and ratios of steps of the same round."""
    plain = seconds["without the hook"]
    print("| gradients | ms a step (range) | relative to without the hook (range) |\n|---|---|---|")
    for name, own in seconds.items():
        ratios = [one / other for one, other in zip(own, plain, strict=True)]
        spans = [
            f"{median(some):.{d}f} ({min(some):.{d}f} to {max(some):.{d}f})"
            for some, d in (([1e3 * s for s in own], 0), (ratios, 2))
        ]
        print(f"| {name} | {spans[0]} | {spans[1]} |")


if __name__ == "__main__":
    main()
