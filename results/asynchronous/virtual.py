"""Policies on a virtual clock, five seeds each: SqueezeNet on digits, and LeNet on MNIST.

Eight workers, of whose gradients one in twenty takes five times as long; messages take no time. Writes virtual-*.json; those
that are there are not simulated again. Usage: python results/asynchronous/virtual.py MNIST
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from firetrain.report.simulated import load, of_outcomes

HERE = Path(__file__).parent
POLICIES = (
    "sync", "backup:spare=1", "backup:spare=2", "ssp:staleness=3", "async", "async:rate=staleness", "softsync:n=4,rate=staleness",
)  # fmt: skip
SEEDS = (1, 2, 3, 4, 5)
SLOWER = ("learning_rate.warmup_epochs=0", "batch.global_size=64")
NETWORKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "squeezenet-digits": (
        "squeezenet-digits", (*SLOWER, "learning_rate.base=0.005", "target.top1=0.95", "target.max_epochs=30"),
    ),
    "lenet-mnist": ("lenet-mnist", (*SLOWER, "learning_rate.base=0.002", "target.top1=0.97", "target.max_epochs=2")),
}  # fmt: skip


def main(mnist: Path) -> None:
    """Simulate what is missing, and print a Markdown table for each network."""
    for name, (config, overrides) in NETWORKS.items():
        path = HERE / f"virtual-{name}.json"
        if not path.exists():
            data = [f"data.root={mnist}"] if config == "lenet-mnist" else []
            path.write_text(json.dumps(simulated(config, [*overrides, *data])) + "\n")
        print(f"{name}\n\n{of_outcomes(load(path)).text_table().markdown()}\n")


def simulated(config: str, overrides: list[str]) -> list[dict[str, Any]]:
    """What the simulation finds of each policy and seed."""
    command = [
        sys.executable,
        "-m",
        "firetrain",
        "simulate",
        config,
        "--workers",
        "8",
        "--stragglers",
        "0.05x5",
        "--json",
    ]
    command += ["--policies", ",".join(POLICIES), "--seeds", ",".join(map(str, SEEDS))]
    command += [word for one in overrides for word in ("--set", one)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    found: list[dict[str, Any]] = json.loads(subprocess.check_output(command, env=environment))
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
