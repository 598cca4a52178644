"""Policies on a virtual clock, five seeds each: SqueezeNet on digits, and LeNet on MNIST.

Eight workers, of whose gradients one in twenty takes five times as long; messages take no time. All train to the last epoch,
also after the target. Writes virtual-NETWORK/POLICY.json and, when all are there, pictures of the first network beside them; a
policy that is there is not simulated again. Without the folder of MNIST's images nothing is simulated.
Usage: python results/asynchronous/virtual.py [MNIST [NETWORK]]
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from firetrain.records.file import write_whole
from firetrain.report.simulated import load, of_outcomes
from firetrain.report.simulated_plots import write_plots

HERE = Path(__file__).parent
POLICIES = (
    "sync", "backup:spare=1", "backup:spare=2", "ssp:staleness=3", "async", "async:rate=staleness", "softsync:n=4,rate=staleness",
)  # fmt: skip
SEEDS = (1, 2, 3, 4, 5)
COMMON = ("learning_rate.warmup_epochs=0", "batch.global_size=64", "target.train_on=true")
NETWORKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "squeezenet-digits": (
        "squeezenet-digits", (*COMMON, "learning_rate.base=0.005", "target.top1=0.95", "target.max_epochs=30"),
    ),
    "lenet-mnist": ("lenet-mnist", (*COMMON, "learning_rate.base=0.002", "target.top1=0.97", "target.max_epochs=2")),
}  # fmt: skip


def main(mnist: Path | None, networks: Sequence[str]) -> None:
    """Simulate what is missing if `mnist` is given, the folder of its images, and print a Markdown table for each network."""
    for name in networks or NETWORKS:
        config, overrides = NETWORKS[name]
        data = [f"data.root={mnist}"] if config == "lenet-mnist" else []
        folder = HERE / f"virtual-{name}"
        folder.mkdir(exist_ok=True)
        for policy in POLICIES:
            path = folder / f"{policy.translate(str.maketrans(':,=', '---'))}.json"
            if mnist and not path.exists():
                write_whole(path, simulated(config, policy, [*overrides, *data]))
                print(path, flush=True)
        found = [one for path in sorted(folder.glob("*.json")) for one in load(path)]
        found.sort(key=lambda one: (POLICIES.index(one.policy), one.seed))
        print(f"{name}\n\n{of_outcomes(found).text_table().markdown()}\n")
        if name == next(iter(NETWORKS)) and {one.policy for one in found} == set(POLICIES):
            for path in write_plots(found, folder):
                if path.suffix != ".svg":
                    path.unlink()


def simulated(config: str, policy: str, overrides: Sequence[str]) -> str:
    """What the simulation of a policy prints, with all seeds."""
    command = [sys.executable, "-m", "firetrain", "simulate", config, "--json", "--policies", policy]
    command += ["--workers", "8", "--stragglers", "0.05x5", "--seeds", ",".join(map(str, SEEDS))]
    command += [word for one in overrides for word in ("--set", one)]
    return subprocess.check_output(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if sys.argv[1:] else None, sys.argv[2:])
