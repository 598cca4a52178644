"""Checks that every reduction sums correctly on four ranks. Nothing is timed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import torch

from firetrain.bench.allreduce import LOSSY
from firetrain.bench.gpu.captured import Captured
from firetrain.bench.gpu.ranks import on_ranks_sharing, raise_errors, reductions
from firetrain.bench.gpu.staged import make_reduction
from firetrain.errors import FiretrainError
from firetrain.reduction.context import Context
from firetrain.reduction.interface import Bucket, Reduction
from firetrain.reduction.nccl_executor import NcclExecutor
from firetrain.topology import find_topology
from firetrain.transport.device import is_gpu, synchronize
from firetrain.transport.transport import Transport

RANKS = 4
_SHAPES = (torch.Size([256, 256]), torch.Size([1003]))
_ISSUED, _ISSUES = "issued_s", 20


def verify(device: torch.device) -> Iterator[tuple[str, Any]]:
    """For each reduction and wire dtype "right", or what is wrong with it, on the first rank that noticed.

    If NCCL refuses ranks that share a GPU, their buckets are reduced on the host. Over NCCL also the seconds in which the host
    issues a plan, wave by wave and as a CUDA graph.
    """
    library, found = on_ranks_sharing(_cases, device, RANKS)
    issued, names = found[0].pop(_ISSUED, None), sorted({name for one in found for name in one} - {_ISSUED, "error"})
    cases = {name: next((one[name] for one in found if one.get(name, "right") != "right"), "right") for name in names}
    yield "ranks", RANKS
    yield "transport", library
    yield "cases", cases
    if issued:
        yield _ISSUED, issued
    if wrong := [name for name, problem in cases.items() if problem != "right"]:
        raise FiretrainError(f"wrong: {', '.join(wrong)}")
    raise_errors(found)


def _cases(transport: Transport) -> Iterator[tuple[str, Any]]:
    *names, auto = reductions(transport)
    # the sums of the lossy ones are approximations, which are checked for being finite and the same on all ranks
    yield from _of([*names, *LOSSY], transport)
    yield from _of([auto], transport)
    if transport.on_nccl:
        # last, because the communicator of a capture that fails cannot be used any more
        issued: dict[str, float | str] = {}
        try:
            yield from _captured(transport, issued)
        except RuntimeError as error:  # an experiment that training does not use: its failure is a result
            issued["failed"] = str(error).partition("\n")[0]
        yield _ISSUED, issued


def _captured(transport: Transport, issued: dict[str, float | str]) -> Iterator[tuple[str, Any]]:
    """Check plans as CUDA graphs, and time how long the host issues them, beside issuing them wave by wave."""
    for name in ("ring", "tree"):
        plan = find_topology(name)(transport.world)
        graphs = Captured(plan, Context(transport))
        issued[f"{name} as CUDA graph"] = _issued_s(transport, graphs)
        yield f"{name} as CUDA graphs", _check(transport, graphs)
        waves = NcclExecutor(plan, Context(transport))
        issued[f"{name} wave by wave"] = _issued_s(transport, waves)
        waves.close()


def _of(names: Sequence[str], transport: Transport) -> Iterator[tuple[str, str]]:
    for name in names:
        for dtype in ("float32", "bfloat16"):
            reduction = make_reduction(name, Context(transport, dtype))
            yield f"{name} {dtype}", _check(transport, reduction, lossy=name in LOSSY)


def _issued_s(transport: Transport, executor: NcclExecutor) -> float:
    """The median seconds in which the host issues a bucket to a device that has nothing else to do."""
    bucket = Bucket(torch.zeros(_SHAPES[0].numel(), device=transport.device))
    executor.prepare([bucket])
    times = []
    for _ in range(_ISSUES):
        transport.barrier()
        synchronize(transport.device)
        began_s = time.perf_counter()
        pending = executor.start(bucket)
        times.append(time.perf_counter() - began_s)
        pending.wait()
    return median(times)


def _check(transport: Transport, reduction: Reduction, *, lossy: bool = False) -> str:
    """Two buckets under way together, three times; whole numbers small enough to be exact in the wire dtype."""
    buckets = [
        Bucket(torch.zeros(shape.numel(), device=transport.device), number, (shape,))
        for number, shape in enumerate(_SHAPES)
    ]
    reduction.prepare(buckets)
    problem = ""  # all ranks go on after an error, because each reduction and each comparison needs all of them
    for step in range(3):
        # on the device before the first bucket starts, because copies would make the host wait for it
        numbers = [_numbers(len(bucket), transport.rank, step).to(transport.device) for bucket in buckets]
        pending = []
        for bucket, own in zip(buckets, numbers, strict=True):
            _write_late(bucket.buffer, own)
            pending.append(reduction.start(bucket, step))
        for one in pending:
            one.wait()
        for bucket in buckets:
            expected = sum(_numbers(len(bucket), rank, step) for rank in range(transport.size))
            found = bucket.buffer.cpu()
            wrong = int((~found.isfinite() if lossy else found != expected).sum())
            same = transport.gather(bucket.buffer)
            if wrong:
                problem = problem or f"step {step}, bucket {bucket.number}: {wrong} of {len(bucket)} elements are wrong"
            elif any(not torch.equal(one, same[0]) for one in same):
                problem = problem or f"step {step}, bucket {bucket.number}: ranks differ"
    reduction.close()
    return problem or "right"


def _write_late(buffer: torch.Tensor, numbers: torch.Tensor) -> None:
    """Fill the buffer after a pause of the device, so that a reduction which does not wait for it sums NaN."""
    buffer.fill_(float("nan"))
    if is_gpu(buffer.device):
        torch.cuda._sleep(20_000_000)  # about 10 ms
    buffer.copy_(numbers)


def _numbers(length: int, rank: int, step: int) -> torch.Tensor:
    """Whole numbers from -8 to 8: their sum over the ranks is exact in bfloat16."""
    return (torch.arange(length) * (rank + 3) + 7 * step + rank).remainder(17).float() - 8
