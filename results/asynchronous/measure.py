"""Seconds to 95 % on digits: policies of a parameter server beside data-parallel training, measured and predicted.

Five nodes (network namespaces with a share of the processors each): a server and four workers, or five ranks that sum with a
ring. They are even, or the last one has half of the processors. Runs that are there are left out, so that it can be stopped.

Needs root and iproute2. Usage: python results/asynchronous/measure.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NODES, WORKERS, RATE = 5, 4, "1gbit"
# of the machine, which the nodes share equally; some are left for the network
PROCESSORS = 1.9
SEEDS = (1, 2, 3)
POLICIES = (
    "sync",
    "backup:spare=1",
    "ssp:staleness=3",
    "ssp:staleness=3,rate=staleness",
    "async",
    "async:rate=staleness",
)
CONFIG = (
    "squeezenet-digits", "--set", "model.name=lenet", "--set", "data.image_size=28", "--set", "learning_rate.base=0.002", "--set",
    "learning_rate.warmup_epochs=0", "--set", "target.top1=0.95", "--set", "target.max_epochs=30", "--set",
    "cluster.ranks_per_node=1",
)  # fmt: skip
RING = ("--set", "reduction.name=ring")
# what the last node is: its factor
MACHINES = {"even": "", "slow": f"{NODES - 1}:2"}


def main() -> None:
    """Run what is missing."""
    profile = HERE / "profile.json"
    if not profile.exists():
        own = 32 // WORKERS
        batches = ["--batches", f"{own},{2 * own}", "--save", str(profile)]
        firetrain_on(WORKERS, "", "bench", "profile", *CONFIG, *RING, *batches)
    for machine, slow in MACHINES.items():
        predict(HERE / f"simulated-{machine}.json", profile, slow)
        for seed in SEEDS:
            train(HERE / machine / f"ring-{seed}", slow, seed, *RING)
            for policy in POLICIES:
                words = f"strategy.name=parameter-server:policy={policy.replace(':', ',')}"
                train(
                    HERE / machine / f"{policy.translate(str.maketrans(':,=', '---'))}-{seed}",
                    slow,
                    seed,
                    "--set",
                    words,
                )


def predict(path: Path, profile: Path, slow: str) -> None:
    """Simulate all policies with the measured profile."""
    if path.exists():
        return
    command = ["simulate", *CONFIG, "--profile", str(profile), "--workers", str(WORKERS), "--json"]
    command += ["--policies", ",".join(POLICIES), "--seeds", ",".join(map(str, SEEDS))]
    command += ["--slow", f"{WORKERS - 1}:2"] if slow else []
    path.write_text(run(sys.executable, "-m", "firetrain", *command))


def train(folder: Path, slow: str, seed: int, *words: str) -> None:
    """Train once; of the run its config, facts, metrics and summary are kept."""
    if folder.exists():
        return
    with tempfile.TemporaryDirectory() as results:
        command = [
            "train",
            *CONFIG,
            "--set",
            f"cluster.nodes={NODES}",
            "--set",
            f"seed={seed}",
            *words,
            "--results",
            results,
        ]
        firetrain_on(NODES, slow, *command)
        (made,) = Path(results).glob("*/run.json")
        folder.mkdir(parents=True)
        for name in ("run.json", "config.yaml", "metrics.jsonl", "summary.json"):
            shutil.copy(made.parent / name, folder)
    summary = json.loads((folder / "summary.json").read_text())
    print(folder.name, f"{summary['top1']:.2%}", f"{summary['time_to_accuracy_s'] or float('inf'):.1f} s", flush=True)


def firetrain_on(nodes: int, slow: str, *words: str) -> str:
    """What a command of firetrain prints that runs as one rank on each node."""
    network = [sys.executable, str(ROOT / "tests" / "network.py"), "--nodes", str(nodes), "--rate", RATE]
    network += ["--cpus", f"{PROCESSORS / NODES:.3f}", *(["--slow", slow] if slow else [])]
    return run(*network, sys.executable, "-m", "firetrain", *words)


def run(*command: str) -> str:
    """What a command prints; its errors are shown, and end this one."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main()
