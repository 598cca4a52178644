"""Runs one part as a process: `python -m firetrain.bench.gpu.part NAME` prints its results so far as JSON, a line each time."""

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
    inputs,
    kernels,
    links,
    optimizers,
    reductions,
    steps,
    throughput,
)

PARTS: dict[str, Callable[[torch.device], Iterator[tuple[str, Any]]]] = {
    "facts": facts.measure,
    "reductions": reductions.verify,
    "gradients": gradients.verify,
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
    """Run a part on the first GPU, or on the CPU; a part that is ended early has printed what it had found."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    found: dict[str, Any] = {}
    for key, value in PARTS[name](device):
        found[key] = value
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    run(sys.argv[1])
