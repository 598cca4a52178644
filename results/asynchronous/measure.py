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
# what is kept of a run
KEPT = ("run.json", "metrics.jsonl", "summary.json")
# what the last node is: its factor
MACHINES = {"even": "", "slow": f"{NODES - 1}:2"}


def main() -> None:
    """Run what is missing."""
    profile = HERE / "profile.json"
    if not profile.exists():
        shares = sorted({-(-32 // NODES), 32 // WORKERS, 64 // WORKERS})
        batches = ["--batches", ",".join(map(str, shares)), "--save", str(profile)]
        succeeded(firetrain_on(WORKERS, "", "bench", "profile", *CONFIG, *RING, *batches))
    for machine, slow in MACHINES.items():
        predict(machine, profile, slow)
        for seed in SEEDS:
            train(HERE / machine / f"ring-{seed}", slow, seed, *RING)
            for policy in POLICIES:
                words = f"strategy.name=parameter-server:policy={policy.replace(':', ',')}"
                name = policy.translate(str.maketrans(":,=", "---"))
                train(HERE / machine / f"{name}-{seed}", slow, seed, "--set", words)


def predict(machine: str, profile: Path, slow: str) -> None:
    """Simulate all policies with the measured profile, and predict a step with the ring, which waits for the slowest rank."""
    simulated, ring = HERE / f"simulated-{machine}.json", HERE / f"ring-{machine}.json"
    if not simulated.exists():
        command = ["simulate", *CONFIG, "--profile", str(profile), "--workers", str(WORKERS), "--json"]
        command += ["--policies", ",".join(POLICIES), "--seeds", ",".join(map(str, SEEDS))]
        command += ["--slow", f"{WORKERS - 1}:2"] if slow else []
        simulated.write_text(succeeded(run(sys.executable, "-m", "firetrain", *command)))
    if not ring.exists():
        command = ["predict", *CONFIG, *RING, "--profile", str(profile), "--ranks", str(NODES), "--ranks-per-node", "1"]
        command += ["--reductions", "ring", "--json", *(["--what-if", "compute=x0.5"] if slow else [])]
        ring.write_text(succeeded(run(sys.executable, "-m", "firetrain", *command)))


def train(folder: Path, slow: str, seed: int, *words: str) -> None:
    """Train once; of the run its facts, metrics and summary are kept. A run that has diverged has no summary."""
    if folder.exists():
        return
    with tempfile.TemporaryDirectory() as results:
        settings = ("--set", f"cluster.nodes={NODES}", "--set", f"seed={seed}", *words, "--results", results)
        done = firetrain_on(NODES, slow, "train", *CONFIG, *settings)
        made = [path.parent for path in Path(results).glob("*/run.json")]
        reason = json.loads((made[0] / "run.json").read_text()).get("reason", "") if made else ""
        if not reason.startswith("diverged"):
            succeeded(done)
        draft = folder.with_name(f"{folder.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        for name in KEPT:
            if (made[0] / name).exists():
                shutil.copy(made[0] / name, draft)
        draft.rename(folder)
    path = folder / "summary.json"
    summary = json.loads(path.read_text()) if path.exists() else {"top1": 0.0, "time_to_accuracy_s": None}
    print(
        folder, reason, f"{summary['top1']:.2%}", f"{summary['time_to_accuracy_s'] or float('inf'):.1f} s", flush=True
    )


def firetrain_on(nodes: int, slow: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of firetrain that ran as one rank on each node."""
    network = [sys.executable, str(ROOT / "tests" / "network.py"), "--nodes", str(nodes), "--rate", RATE]
    network += ["--cpus", f"{PROCESSORS / NODES:.3f}", *(["--slow", slow] if slow else [])]
    return run(*network, sys.executable, "-m", "firetrain", *words)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """A command that has ended; its errors are shown."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    """What a command printed; this one ends if it failed."""
    if done.returncode:
        sys.exit(f"{' '.join(done.args)}: exit code {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main()
