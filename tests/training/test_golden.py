"""Golden losses: 20 steps, recorded bit for bit. Changes of the code must not change them.

To accept an intended change, run FIRETRAIN_WRITE_GOLDEN=1 pytest tests/training/test_golden.py, and give the reason in the
commit. On a processor that rounds sums differently, the first losses are compared with a tolerance.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import on_ranks

from firetrain.cluster import SystemClock
from firetrain.config import load_config
from firetrain.records import Run
from firetrain.training.setup import set_up
from firetrain.transport.transport import Transport

GOLDEN = Path(__file__).with_name("golden.json")
STEPS = 20
REDUCTIONS = ("ring", "tree", "native")
FAST = "squeezenet-digits"  # trained under all of them
CONFIGS: dict[str, list[str]] = {
    "squeezenet-digits": ["batch.global_size=32"],
    "googlenet-mini-digits": ["optimizer.name=lars", "batch.global_size=31", "batch.per_rank_max=6"],
    "googlenet-paper-digits": ["batch.global_size=12"],
}


def losses(transport: Transport, folder: str, config: str, overrides: list[str]) -> list[str]:
    """The losses of all steps as hexadecimal numbers, on rank 0."""
    common = ["log.every_steps=1", f"target.max_steps={STEPS}", "target.top1=null"]
    loaded = load_config(config, [*common, *overrides])
    path = str(Run.create(Path(folder), loaded, SystemClock().date(), {}).path) if transport.rank == 0 else None
    run = Run(Path(transport.broadcast_object(path)))
    training = set_up(loaded.config, transport, run)
    training.run()
    training.close()
    return [float(row["loss"]).hex() for row in run.metrics("step")] if transport.rank == 0 else []


def several(transport: Transport, folder: str) -> dict[str, list[str]]:
    reductions = REDUCTIONS if transport.size > 1 else REDUCTIONS[:1]
    return {
        f"{config}, {transport.size} ranks, {reduction}": losses(
            transport, folder, config, [*overrides, f"reduction.name={reduction}"]
        )
        for config, overrides in CONFIGS.items()
        for reduction in (reductions if config == FAST else reductions[:1])
    }


def arithmetic(transport: Transport) -> str:
    """Facts that identify how a machine rounds: the processor, torch, and a sum of products that it computes."""
    draws = torch.Generator().manual_seed(1)
    images, kernels = torch.randn(4, 8, 15, 15, generator=draws), torch.randn(12, 8, 3, 3, generator=draws)
    found = torch.nn.functional.conv2d(images, kernels).flatten(1) @ torch.randn(12 * 169, 7, generator=draws)
    digest = hashlib.sha256(found.numpy().tobytes()).hexdigest()[:16]
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "")
    processor = model.partition(": ")[2] or platform.machine()
    return ", ".join([processor, torch.backends.cpu.get_cpu_capability(), torch.__version__, digest])


def test_losses_are_those_that_were_recorded_bit_for_bit(tmp_path: Path) -> None:
    found: dict[str, Any] = {"arithmetic": on_ranks(1, arithmetic)[0]}
    for ranks in (1, 3):
        found |= on_ranks(ranks, several, str(tmp_path), limit_s=400)[0]
    assert all(len(row) == STEPS for name, row in found.items() if name != "arithmetic")
    known = {golden["arithmetic"]: golden for golden in json.loads(GOLDEN.read_text())}
    if os.environ.get("FIRETRAIN_WRITE_GOLDEN"):
        known[found["arithmetic"]] = found
        GOLDEN.write_text(json.dumps(list(known.values()), indent=1) + "\n")
    if found["arithmetic"] in known:
        assert found == known[found["arithmetic"]]
        return
    warnings.warn(f"no losses were recorded for {found['arithmetic']}: only their beginning is compared", stacklevel=1)
    golden = next(iter(known.values()))
    for name in golden.keys() - {"arithmetic"}:
        first, recorded = ([float.fromhex(text) for text in row[name][:5]] for row in (found, golden))
        assert first == pytest.approx(recorded, rel=1e-3), name
