"""Runs one check as a process: `python -m firetrain.bench.gpu.check NAME END`.

It prints its results so far as JSON, a line each time, and is ended when time.monotonic() is END.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from firetrain.bench.gpu import (
    ablations,
    compilation,
    facts,
    gradients,
    hook,
    inputs,
    kernels,
    links,
    lost,
    optimizers,
    ranks,
    reductions,
    steps,
    strategies,
    throughput,
)
from firetrain.transport.device import first_device

CHECKS: dict[str, Callable[[torch.device], Iterator[tuple[str, Any]]]] = {
    "facts": facts.measure,
    "reductions": reductions.verify,
    "lost": lost.verify,
    "gradients": gradients.verify,
    "hook": hook.verify,
    "strategies": strategies.verify,
    "optimizers": optimizers.verify,
    "steps": steps.verify,
    "compile": compilation.verify,
    "throughput": throughput.measure,
    "ablations": ablations.measure,
    "inputs": inputs.measure,
    "links": links.measure,
    "kernels": kernels.measure,
}


def run(name: str) -> None:
    """Run a check on the first GPU, or on the CPU; a check that is ended early has printed what it had found."""
    device = first_device()
    ranks.few_algorithms()
    found: dict[str, Any] = {}
    for key, value in CHECKS[name](device):
        found[key] = value
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    ranks.ends_at(float(sys.argv[2]))
    run(sys.argv[1])
