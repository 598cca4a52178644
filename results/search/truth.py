"""Compares predicted steps with measured ones: what a search finds, data-parallel, One Weird Trick and the best pipeline.

For each model, four nodes (network namespaces) with links of 1 Gbit/s are profiled, and slices are measured there for all cases.
The placements of each case are then predicted from this profile, also for other rates, batches and numbers of nodes, and run;
what was found is run once if it is one of the others. With another number of nodes, each has another share of the machine's
processors, and the speed of the machine itself varies over hours: just before a case runs, and just after, a step without
communication is timed on its nodes, and the prediction is given as a factor how much faster that is than it was for the
profile. A case during which this speed changed by more than a tenth is measured again. The profile of each model is kept
beside truth.json: slices that later cases add change no prediction of the earlier ones.
Cases that truth.json has are left out. Needs root and iproute2. Usage: python results/search/truth.py FOLDER [CASE ...]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from firetrain.config.sections.strategy import DATA_PARALLEL
from firetrain.provenance import provenance

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILE = HERE / "truth.json"
MODELS = {
    "alexnet": ("squeezenet-digits", "model.name=alexnet", "model.stem=imagenet", "data.image_size=128"),
    "googlenet": ("googlenet-paper-digits", "data.image_size=64", "model.auxiliary_heads=false"),
    "squeezenet": ("squeezenet-digits", "model.name=squeezenet1_1", "model.stem=imagenet", "data.image_size=128"),
}
NODES, RATE_MBIT = 4, 1000
# of the machine, which the nodes share equally; some are left for the network
PROCESSORS = 1.9
# name -> (model, nodes, rate in Mbit/s, images in a batch)
CASES = {
    f"{model} {nodes} nodes {rate} Mbit/s batch {batch}": (model, nodes, rate, batch)
    for model in MODELS
    for nodes, rate, batch in ((4, 1000, 32), (4, 100, 32), (4, 1000, 64), (4, 300, 32), (3, 1000, 32), (6, 1000, 32))
}
# images of a rank's pass, from the share of six nodes to a batch of 32 on one; the 16 of a batch of 64 are held out
BATCHES = "6,8,11,32"
PACED = 8
SHORT_S = 1.5
# by what share the machine's speed may change during a case, and how often one is measured at most
STEADY, TRIES = 0.1, 3


def main(folder: Path, cases: list[str]) -> None:
    """Measure what is missing, and write after every case, so that it can be stopped."""
    found: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in cases or CASES:
        if name not in found:
            found[name] = steadily(folder / name.replace(" ", "-").replace("/", ""), *CASES[name])
            FILE.write_text(json.dumps(found, indent=1) + "\n")
            shutil.copy(calibrated(folder, CASES[name][0]), HERE)
            print(name, json.dumps(found[name]["steps"], indent=1), flush=True)


def steadily(folder: Path, model: str, nodes: int, rate: int, batch: int) -> dict[str, Any]:
    """`measured` while the machine's speed is the same; if it never is, the steadiest of all tries."""
    best: dict[str, Any] = {}
    for _ in range(TRIES):
        one = measured(folder, model, nodes, rate, batch)
        if not best or change(one) < change(best):
            best = one
        if change(best) <= STEADY:
            break
    return best


def change(case: dict[str, Any]) -> float:
    """By what share the machine's speed changed during a case."""
    return abs(float(case["pace_after"]) / float(case["pace"]) - 1)


def measured(folder: Path, model: str, nodes: int, rate: int, batch: int) -> dict[str, Any]:
    """The predicted and the measured steps of one case."""
    placement = folder / "found.yaml"
    profile = calibrated(folder.parent, model)
    folder.mkdir(parents=True, exist_ok=True)
    pace, known = pace_now(folder, profile, model, nodes), slices_in(profile)
    # slices that the search needs at this pace, if there are more
    more = Path(shutil.copy(profile, folder / "more.json"))
    slices(more, model, nodes, batch, changes(rate, pace))
    if slices_in(more) != known:  # which took minutes
        as_if_before(more, known, pace_now(folder, profile, model, NODES))
        more.replace(profile)
        pace = pace_now(folder, profile, model, nodes)
    words, changed = of_case(model, batch, "null"), changes(rate, pace)
    on_them = ["--profile", str(profile), "--ranks", str(nodes), "--ranks-per-node", "1", changed, "--json"]
    (freely,) = json.loads(firetrain("search", *words, *on_them))
    # all are predicted and run with the size of buckets that was found
    words = of_case(model, batch, f"{freely['bucket_bytes'] / 2**20}")
    (searched,) = json.loads(firetrain("search", *words, *on_them))
    # the fastest, also if data-parallel training is recommended because it is nearly as fast
    (fastest,) = json.loads(firetrain("search", *words, *on_them, "--margin", "0", "--out", str(placement)))
    strategies = [name for name in (DATA_PARALLEL, "one-weird-trick") if name in searched["known_s"]]
    strategies += [searched["pipeline"]["name"]] if searched["pipeline"] else []
    # where the search names one of the strategies, the file would train in the same way
    found, recommended = (
        one["recommended"] if one["recommended"] in strategies else "found" for one in (fastest, searched)
    )
    if found == "found":
        strategies.append(str(placement))
    if searched["unmeasured_slices"]:
        sys.exit(
            f"{folder}: {searched['unmeasured_slices']} slices were not measured, so that it predicts lower bounds"
        )
    predicted = {**searched["known_s"], found: fastest["recommended_s"]}
    if searched["pipeline"]:
        predicted[searched["pipeline"]["name"]] = searched["pipeline"]["step_s"]
    # medians of a few short steps vary by several percent
    repeats = ("2", "15") if max(predicted.values()) < SHORT_S else ("1", "4")
    bench = ["bench", "strategies", *words, "--strategies", ",".join(strategies), "--json"]
    printed = on_nodes(nodes, rate, *bench, "--steps", repeats[0], "--repeats", repeats[1])
    timed = json.loads(printed.replace(str(placement), "found"))
    measured_s = {name: one["step_s"]["median"] for name, one in timed["strategies"].items()}
    steps = {name: {"predicted_s": predicted[name], "measured_s": measured_s[name]} for name in measured_s}
    machine = json.loads(profile.read_text())["machines"][-1]
    of_machine = {**{key: machine[key] for key in ("processor", "cores")}, "commit": provenance()["commit"]}
    after = pace_now(folder, profile, model, nodes)
    return {
        "steps": steps, "found": found, "recommended": recommended, "pace": pace, "pace_after": after,
        "searched": searched, "timed": timed, "machine": of_machine,
    }  # fmt: skip


def calibrated(folder: Path, model: str) -> Path:
    """The profile of four nodes with links of 1 Gbit/s, of a model's steps, and of the slices that all its cases need.

    It is measured if there is none yet.
    """
    profile = folder / f"profile-{model}.json"
    if not profile.exists():
        folder.mkdir(parents=True, exist_ok=True)
        on_nodes(
            NODES, RATE_MBIT, "bench", "profile", *of_case(model, 32, "2"), "--batches", BATCHES, "--save", str(profile)
        )
        for other, nodes, rate, batch in CASES.values():
            if other == model:
                slices(profile, model, nodes, batch, changes(rate, NODES / nodes))
    return profile


def changes(rate: int, pace: float) -> str:
    """What differs in a case from the profile, as an option: the links, and the pace of a node's share of the processors."""
    return f"--what-if=bandwidth=x{rate / RATE_MBIT:g},compute=x{pace:.4f}"


def slices(profile: Path, model: str, nodes: int, batch: int, changed: str) -> None:
    """Measure the slices of layers that a search needs and the profile does not have."""
    words = of_case(model, batch, "null")
    on_nodes(NODES, RATE_MBIT, "bench", "slices", *words, "--for-ranks", str(nodes), changed, "--save", str(profile))


def slices_in(profile: Path) -> list[dict[str, Any]]:
    """The measured slices of a profile."""
    found: list[dict[str, Any]] = json.loads(profile.read_text())["slices"]
    return found


def as_if_before(profile: Path, known: list[dict[str, Any]], pace: float) -> None:
    """Give slices that are not `known` the seconds that they would have had at the speed at which the profile was measured."""
    whole = json.loads(profile.read_text())
    for one in whole["slices"]:
        if one not in known:
            one["forward_s"], one["backward_s"] = one["forward_s"] * pace, one["backward_s"] * pace
    profile.write_text(json.dumps(whole, indent=1) + "\n")


def pace_now(folder: Path, profile: Path, model: str, nodes: int) -> float:
    """How many times as fast as for the profile one of so many nodes computes the model's passes now."""
    now = folder / "now.json"
    now.unlink(missing_ok=True)
    few = ["--batches", str(PACED), "--steps", "5", "--repeats", "3"]
    on_nodes(nodes, RATE_MBIT, "bench", "profile", *of_case(model, 32, "2"), *few, "--save", str(now))
    return passes_s(profile) / passes_s(now)


def passes_s(profile: Path) -> float:
    """Seconds of both passes of `PACED` images."""
    steps = json.loads(profile.read_text())["steps"]
    (step,) = (one for one in steps if one["batch_per_rank"] == PACED)
    return float(step["forward_s"]["value"] + step["backward_s"]["value"])


def of_case(model: str, batch: int, bucket_mib: str) -> list[str]:
    """The config of a model with a batch and a size of buckets, as words of a command."""
    config, *options = MODELS[model]
    options += [f"batch.global_size={batch}", "reduction.name=ring", f"reduction.bucket_mib={bucket_mib}"]
    return [config, *(f"--set={text}" for text in options)]


def on_nodes(nodes: int, rate: int, *words: str) -> str:
    """What a command of firetrain prints that runs as one rank on each node."""
    network = [sys.executable, str(ROOT / "tests" / "network.py"), "--nodes", str(nodes), "--rate", f"{rate}mbit"]
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
