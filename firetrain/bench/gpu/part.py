"""One part as a process: `python -m firetrain.bench.gpu.part NAME` prints what it found as a line of JSON."""

from __future__ import annotations

import json
import sys

import torch

from firetrain.bench.gpu import facts, kernels, reductions, steps, throughput

PARTS = {
    "facts": facts.measure,
    "reductions": reductions.verify,
    "steps": steps.verify,
    "throughput": throughput.measure,
    "kernels": kernels.measure,
}

if __name__ == "__main__":
    chosen = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    print(json.dumps(PARTS[sys.argv[1]](chosen)))
