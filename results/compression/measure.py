"""Sizes and accuracies of compressed networks, three seeds each: LeNets on MNIST, SqueezeNet on digits and on CIFAR-10.

Of SqueezeNet 1.0 and AlexNet with 1,000 classes, whose data is not here, only sizes: their weights are as good as drawn.
Accuracies are those that `firetrain evaluate` finds in a fresh process; sizes are those of files. Another fresh process opens
each file, which must have the bits that its last training has left. What is there is left out, so that it can be stopped.
Usage: python results/compression/measure.py FOLDER IMAGES [NETWORK ...]; IMAGES has the folders mnist and cifar10.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from firetrain.coding.file import read
from firetrain.compression.pipeline import weights_of
from firetrain.records import Run

HERE = Path(__file__).parent
FILE = HERE / "sizes.json"
SEEDS = (1, 2, 3)
ALONE = ("cluster.ranks_per_node=1", "target.top1=null", "checkpoint.every_epochs=1", "reduction.name=native")
MNIST = (
    "model.stem=small", "batch.global_size=64", "learning_rate.base=0.02", "optimizer.weight_decay=0.0001",
    "target.max_epochs=20",
)  # fmt: skip
IMPOSED, IMPOSED_PRICED, ALEXNET = (
    str(HERE / f"{name}.yaml") for name in ("imposed", "imposed-entropy", "imposed-alexnet")
)
SYNTHETIC = (
    "model.stem=imagenet", "data.name=synthetic", "data.classes=1000", "data.images=64", "data.image_size=64",
    "batch.global_size=16", "target.max_epochs=1",
)  # fmt: skip
# config -> folder of its images
IMAGES = {"lenet-mnist": "mnist", "squeezenet-cifar10": "cifar10"}
BITS = (8, 6, 5, 4)
# whose sizes alone are measured, and do not depend on the seed
ONE_SEED = ("alexnet",)
# of the MNIST rows with few weights, which differ in what follows the pruning
LEAN_300_100, LEAN_5 = "lenet-300-100-5bit", "lenet-5-5bit"
# name -> (recipe of a pruning that compressions share, options)
Compressions = dict[str, tuple[str | None, tuple[str, ...]]]


def squeezenet(images: str) -> Compressions:
    """The compressions of SqueezeNet on these images, by the recipes of this folder."""
    pruned, priced, shared, half = (str(HERE / f"{images}{kind}.yaml") for kind in ("", "-entropy", "-sharing", "-svd"))
    return {
        **{f"deep {bits} bits": (pruned, ("--recipe", pruned, "--bits", str(bits))) for bits in BITS},
        "deep, priced bits": (pruned, ("--recipe", priced)),
        "pruning alone": (None, ("--method", "prune", "--recipe", pruned)),
        **{
            f"sharing alone, {bits} bits": (None, ("--method", "quantise", "--recipe", shared, "--bits", str(bits)))
            for bits in BITS
        },
        "SVD, a fifth": (None, ("--method", "svd", "--recipe", pruned)),
        "SVD, half": (None, ("--method", "svd", "--recipe", half)),
    }


# network -> (config, overrides, compressions)
NETWORKS: dict[str, tuple[str, tuple[str, ...], Compressions]] = {
    "lenet-300-100": (
        "lenet-mnist", ("model.name=lenet_300_100", *MNIST),
        {
            **{
                f"deep {bits} bits": ("lenet-300-100", ("--recipe", "lenet-300-100", "--bits", str(bits))) for bits in (6, 5, 4)
            },
            "more training": (LEAN_300_100, ("--recipe", LEAN_300_100)),
            "more training, priced bits": (LEAN_300_100, ("--recipe", "lenet-300-100-entropy")),
        },
    ),
    "lenet-5": (
        "lenet-mnist", MNIST,
        {
            "deep": (None, ("--recipe", "lenet-5")),
            "more training": (LEAN_5, ("--recipe", LEAN_5)),
            "more training, priced bits": (LEAN_5, ("--recipe", "lenet-5-entropy")),
        },
    ),
    "squeezenet-digits": ("squeezenet-digits", ("target.max_epochs=40",), squeezenet("digits")),
    "squeezenet-cifar10": (
        "squeezenet-cifar10", ("cluster.ranks_per_node=2", "reduction.name=ring", "target.max_epochs=40"),
        squeezenet("cifar10"),
    ),
    "squeezenet1_0": (
        "squeezenet-digits",
        ("model.name=squeezenet1_0", *SYNTHETIC),
        {
            **{f"deep {bits} bits": (None, ("--recipe", IMPOSED, "--bits", str(bits))) for bits in BITS},
            "deep, priced bits": (None, ("--recipe", IMPOSED_PRICED)),
        },
    ),
    "alexnet": (
        "squeezenet-digits", ("model.name=alexnet", *SYNTHETIC),
        {
            "deep": (None, ("--recipe", ALEXNET)),
            "pruning alone": (None, ("--method", "prune", "--recipe", ALEXNET)),
            "SVD": (None, ("--method", "svd", "--recipe", "svd-alexnet")),
        },
    ),
}  # fmt: skip


def main(folder: Path, images: Path, names: list[str]) -> None:
    """Measure what is missing, and write after every file."""
    found: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in names or NETWORKS:
        config, overrides, compressions = NETWORKS[name]
        # what is needed to find the data, and a file does not have
        data = [f"data.root={images / IMAGES[config]}"] if config in IMAGES else []
        for seed in SEEDS if name not in ONE_SEED else SEEDS[:1]:
            own = found.setdefault(name, {}).setdefault(str(seed), {})
            if set(compressions) <= own.keys():
                print(f"{name} {seed}: {FILE} has it, and must lose it to measure it again", flush=True)
                continue
            run = trained(folder / name / f"seed-{seed}", config, [*ALONE, *overrides, *data, f"seed={seed}"])
            if "trained" not in own:
                own["trained"] = evaluated(run, data)
            for compression, (shared, options) in compressions.items():
                if compression in own:
                    continue
                out = folder / name / f"seed-{seed}-{compression.replace(' ', '-').replace(',', '')}.fire"
                words = [str(run), *options]
                if shared:
                    words = [str(pruned(run, out, shared)), "--method", "quantise", *options]
                began_s = time.perf_counter()
                firetrain("compress", "run", *words, "--out", str(out))
                ran_s, open_s, command_s = time.perf_counter() - began_s, open_seconds(out), opened(out)
                parts = json.loads(firetrain("compress", "show", str(out), "--json"))["sizes"]
                summary = json.loads((run / "summary.json").read_text())
                own[compression] = {
                    "from_top1": summary["top1"], "bytes": out.stat().st_size, "sizes": parts, "run_s": ran_s,
                    "open_s": open_s, "open_command_s": command_s, **evaluated(out, data),
                }  # fmt: skip
                FILE.write_text(json.dumps(found, indent=1) + "\n")
                print(name, seed, compression, own[compression]["bytes"], f"{own[compression]['top1']:.2%}", flush=True)


def pruned(run: Path, out: Path, recipe: str) -> Path:
    """The last run of a pruning, which is trained unless it is there, so that files that differ later have the same one."""
    path = out.with_name(f"{run.parent.name}-pruned-{Path(recipe).stem}.fire")
    if not path.exists():
        firetrain("compress", "run", str(run), "--method", "prune", "--recipe", recipe, "--out", str(path))
    return last_training(path)


def last_training(path: Path) -> Path:
    """The last run that was trained for a file; of its own, or of the pruning that it shares with others."""
    summaries = path.with_name(f"{path.name}.trainings").glob("*/*/summary.json")
    return max(summaries, key=lambda summary: summary.stat().st_mtime_ns).parent


def trained(folder: Path, config: str, overrides: list[str]) -> Path:
    """The run of a network, which is trained unless it is there."""
    if not list(folder.glob("*/summary.json")):
        firetrain("launch", config, *(word for one in overrides for word in ("--set", one)), "--results", str(folder))
    return next(folder.glob("*/summary.json")).parent


def open_seconds(path: Path) -> float:
    """How long reading a file and unpacking all of its tensors takes."""
    began_s = time.perf_counter()
    read(path).state()
    return time.perf_counter() - began_s


def opened(path: Path) -> float:
    """How long a fresh process takes to open a file; what it finds must have the bits of the last training's checkpoint.

    A file for which nothing was trained, as after SVD, has no such checkpoint.
    """
    weights = path.with_suffix(".pt")
    weights.unlink(missing_ok=True)  # of a measurement that was stopped
    began_s = time.perf_counter()
    firetrain("compress", "open", str(path), "--out", str(weights))
    seconds = time.perf_counter() - began_s
    if path.with_name(f"{path.name}.trainings").exists():
        state, left = torch.load(weights, weights_only=True), weights_of(Run(last_training(path)))
        if not all(np.array_equal(bits(state[name].numpy()), bits(array)) for name, array in left.items()):
            sys.exit(f"{path} has other bits than its last training")
    weights.unlink()
    return seconds


def bits(array: Any) -> Any:
    """The bits of float32 numbers, of which 0 and -0 differ."""
    return np.ascontiguousarray(array, np.float32).view(np.uint32)


def evaluated(what: Path, data: list[str]) -> dict[str, Any]:
    """The score of a run or file, in a fresh process."""
    score: dict[str, Any] = json.loads(
        firetrain("evaluate", str(what), *(word for one in data for word in ("--set", one)), "--json")
    )
    return score


def firetrain(*words: str) -> str:
    """What a command prints; its errors are shown, and end this one."""
    command = [sys.executable, "-m", "firetrain", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3:])
