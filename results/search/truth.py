"""Compares predicted steps with measured ones: what a search finds, data-parallel, One Weird Trick and the best pipeline.

For each case: four nodes (network namespaces) are profiled, their slices are measured, the placement is searched, and all are
run. Cases that truth.json has are left out. Needs root and iproute2. Usage: python results/search/truth.py FOLDER [CASE ...]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILE = HERE / "truth.json"
MODELS = {
    "alexnet": ("squeezenet-digits", "model.name=alexnet", "model.stem=imagenet", "data.image_size=128"),
    "googlenet": ("googlenet-paper-digits", "data.image_size=64", "model.auxiliary_heads=false"),
    "squeezenet": ("squeezenet-digits", "model.name=squeezenet1_1", "model.stem=imagenet", "data.image_size=128"),
}
# of the machine, which the nodes share equally; some are left for the network
PROCESSORS = 1.9
# name -> (model, nodes, rate, images in a batch)
CASES = {
    f"{model} {nodes} nodes {rate} batch {batch}": (model, nodes, rate, batch)
    for model in MODELS
    for nodes, rate, batch in (
        (4, "1gbit", 32), (4, "100mbit", 32),
        (4, "1gbit", 64), (4, "300mbit", 32), (3, "1gbit", 32), (6, "1gbit", 32),
    )
}  # fmt: skip


def main(folder: Path, cases: list[str]) -> None:
    """Measure what is missing, and write after every case, so that it can be stopped."""
    found: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in cases or CASES:
        if name not in found:
            found[name] = measured(folder / name.replace(" ", "-"), *CASES[name])
            FILE.write_text(json.dumps(found, indent=1) + "\n")
            print(name, json.dumps(found[name]["steps"], indent=1), flush=True)


def measured(folder: Path, model: str, nodes: int, rate: str, batch: int) -> dict[str, Any]:
    """The predicted and the measured steps of one case."""
    folder.mkdir(parents=True, exist_ok=True)
    profile, placement = folder / "profile.json", folder / "found.yaml"
    config, *options = MODELS[model]
    words = [config, *(f"--set={text}" for text in (*options, f"batch.global_size={batch}", "reduction.name=ring"))]
    if not profile.exists():
        own = -(-batch // nodes)
        on_nodes(
            nodes, rate, "bench", "profile", *words, "--batches", f"{own},{2 * own},{batch}", "--save", str(profile)
        )
    on_nodes(nodes, rate, "bench", "slices", *words, "--save", str(profile))
    on_them = ["--profile", str(profile), "--ranks", str(nodes), "--ranks-per-node", "1", "--json"]
    (freely,) = json.loads(firetrain("search", *words, "--set=reduction.bucket_mib=null", *on_them))
    # all are predicted and run with the size of buckets that was found
    words.append(f"--set=reduction.bucket_mib={freely['bucket_bytes'] / 2**20}")
    (searched,) = json.loads(firetrain("search", *words, *on_them, "--out", str(placement)))
    strategies = [
        str(placement),
        *(name for name in ("data-parallel", "one-weird-trick") if name in searched["known_s"]),
    ]
    strategies += [searched["pipeline"]["name"]] if searched["pipeline"] else []
    predicted = {strategies[0]: searched["step_s"], **searched["known_s"]}
    if searched["pipeline"]:
        predicted[strategies[-1]] = searched["pipeline"]["step_s"]
        predicted[strategies[0]] = min(searched["step_s"], searched["pipeline"]["step_s"])
    bench = ["bench", "strategies", *words, "--strategies", ",".join(strategies), "--steps", "2", "--repeats", "5"]
    timed = json.loads(on_nodes(nodes, rate, *bench, "--json"))
    measured_s = {name: one["step_s"]["median"] for name, one in timed["strategies"].items()}
    steps = {name: {"predicted_s": predicted[name], "measured_s": measured_s[name]} for name in strategies}
    steps["found"] = steps.pop(strategies[0])
    machine = json.loads(profile.read_text())["machines"][-1]
    of_machine = {key: machine[key] for key in ("processor", "cores", "commit")}
    return {"steps": steps, "searched": searched, "timed": timed, "machine": of_machine}


def on_nodes(nodes: int, rate: str, *words: str) -> str:
    """What a command of firetrain prints that runs as one rank on each node."""
    network = [sys.executable, str(ROOT / "tests" / "network.py"), "--nodes", str(nodes), "--rate", rate]
    network += ["--cpus", f"{PROCESSORS / nodes:.3f}"]
    return run(*network, sys.executable, "-m", "firetrain", *words)


def firetrain(*words: str) -> str:
    """What a command of firetrain prints."""
    return run(sys.executable, "-m", "firetrain", *words)


def run(*command: str) -> str:
    """What a command prints; its errors are shown, and end this one."""
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
