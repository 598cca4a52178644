"""Checks that compiled models have the same gradients, and that nothing is compiled after the warm-up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from firetrain.bench.gpu.gradients import too_far
from firetrain.bench.gpu.one_rank import batch_of, gradient_of, one_rank
from firetrain.errors import FiretrainError
from firetrain.transport.device import is_gpu

_SIZE, _BATCH, _LAST = 28, 8, 3


def verify(device: torch.device) -> Iterator[tuple[str, Any]]:
    """For each unit of compilation: seconds of the warm-up, graphs compiled after it, and the difference of gradients."""
    # compilers for CPUs take minutes for a model with dropout, which tests/parallel/test_compiled.py compiles at a smaller size
    options = (f"model.name={'squeezenet_mini' if is_gpu(device) else 'lenet'}", f"data.image_size={_SIZE}")
    batches = [batch_of(count, _SIZE, device) for count in (_BATCH, _LAST)]
    plain = [gradient_of(one_rank(device, *options), batch, len(batch)) for batch in batches]
    for unit in ("model", "block"):
        worker = one_rank(device, *options, "compile=true", f"compile_unit={unit}")
        began_s = time.perf_counter()
        worker.warm_up(_SIZE, {_BATCH, _LAST}, {_BATCH})
        warm_up_s = time.perf_counter() - began_s
        graphs = _graphs()
        found = [gradient_of(worker, batch, len(batch)) for batch in batches]
        with worker.evaluating(), torch.no_grad():
            worker.predict(batches[0], batches[0].samples)
        difference = max(float((a - b).norm() / a.norm()) for a, b in zip(plain, found, strict=True))
        afterwards = _graphs() - graphs
        facts = {"warm_up_s": round(warm_up_s, 1), "graphs": graphs, "graphs_afterwards": afterwards}
        yield unit, {**facts, "gradient_difference": difference}
        if afterwards or too_far({unit: difference}):
            raise FiretrainError(f"{unit}: {afterwards} graphs after the warm-up, gradients differ by {difference:.1e}")


def _graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
