"""Predict and measure all-reduces and training steps on networks of namespaces: python results/prediction/measure.py FOLDER.

The profile is measured on 4 nodes at one rate. Held out are 3, 6 and 8 nodes, half and twice that rate, another bucket size, and
other models, for which only the compute time of one rank is measured. Needs root and iproute2, and about twenty minutes with
nothing else running. Existing measurements in FOLDER are kept. Writes profile.json, rows.json and errors.svg, and prints the
tables of README.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import yaml
from matplotlib.figure import Figure
from table import named_of, table
from worlds import BASE, CALIBRATED, HELD_OUT, KNOWN, OTHER, RATE_MBIT, SMALL, TRAINED, World, is_held_out

from firetrain.config import load_config
from firetrain.predict.formulas import FORMULAS
from firetrain.predict.network import LinkCost, Network, Shape
from firetrain.predict.predictor import Predictor
from firetrain.predict.question import Question, WhatIf
from firetrain.records.figure import write_figure
from firetrain.records.profile import Profile
from firetrain.report.prediction_plot import draw_errors

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ALLREDUCES = (
    "ring",
    "halving-doubling",
    "torus",
    "direct",
    "double-tree",
    "pipelined-tree",
    "tree",
    "parameter-server",
)
SIZES = ("1MiB", "8MiB")
STEPS = ("ring", "halving-doubling", "tree", "parameter-server")
SHARED = ("batch.global_size=24",)
# in each of five repetitions; more of those that take milliseconds
STEPS_TIMED = {BASE: 3, OTHER: 1, SMALL: 30}
ATTEMPTS = 3
# all namespaces share this number of processors
PROCESSORS = 2
# ranks on the machine when the compute time of the base model, and of the other models, was measured
MEASURED_RANKS = {BASE: 4, OTHER: PROCESSORS, SMALL: PROCESSORS}


def overrides(bucket_mib: float = 2.0) -> list[str]:
    """The overrides of every config."""
    return [*SHARED, f"reduction.bucket_mib={bucket_mib}", "reduction.name=ring"]


def on_network(world: World, *command: str) -> str:
    """Run a firetrain command as one rank on each node; returns what it printed."""
    rate = f"{round(RATE_MBIT * world.factor)}mbit"
    network = [sys.executable, str(ROOT / "tests" / "network.py"), "--nodes", str(world.nodes), "--rate", rate]
    command = (*network, sys.executable, "-m", "firetrain", *command)
    return subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout


def sets(bucket_mib: float = 2.0) -> list[str]:
    """The overrides as command-line options."""
    return [f"--set={one}" for one in overrides(bucket_mib)]


def calibrate(path: Path, quiet: float) -> None:
    """Write the profile: links, incast, congestion and the base model's step on 4 nodes; the other models' compute on one node.

    Repeated until the spread is small. The file is written when the profile is complete.
    """
    spreads: dict[Path, float] = {}
    while not spreads or (min(spreads.values()) > quiet - 1 and len(spreads) < ATTEMPTS):
        draft = path.with_name(f"attempt-{len(spreads)}.json")
        draft.unlink(missing_ok=True)
        print(
            on_network(
                CALIBRATED, "bench", "profile", BASE, "--batches=3,6,8,12", "--repeats=9", f"--save={draft}", *sets()
            )
        )
        spreads[draft] = max(link.spread for link in Profile.load(draft).links)
    best = min(spreads, key=spreads.__getitem__)
    for name in (OTHER, SMALL):
        on_network(World(1, 1.0), "bench", "profile", name, "--batches=6,8", f"--save={best}", *sets())
    best.rename(path)


def quietest(measured: Callable[[], list[dict[str, Any]]], quiet: float) -> list[dict[str, Any]]:
    """The measurement with the smallest spread; repeated until the spread is small, before anything is predicted."""
    attempts: list[list[dict[str, Any]]] = []
    while not attempts or (noise(attempts[-1]) > quiet and len(attempts) < ATTEMPTS):
        attempts.append(measured())
    return min(attempts, key=noise)


def noise(rows: Sequence[dict[str, Any]]) -> float:
    """The median spread of the rows."""
    return median(row["spread"] for row in rows)


def measure_allreduces(world: World) -> list[dict[str, Any]]:
    """Run `bench allreduce` on a world and return its rows."""
    printed = on_network(
        world, "bench", "allreduce", f"--reductions={','.join(ALLREDUCES)}", f"--sizes={','.join(SIZES)}", "--repeats=5",
        "--json",
    )  # fmt: skip
    return [
        {
            "what": f"{row['bytes'] / 2**20:.0f} MiB",
            "bytes": row["bytes"],
            "reduction": row["reduction"],
            "measured_s": row["median_s"],
            "spread": row["p90_s"] / row["p10_s"],
            "busy": row["busy"],
            "nodes": world.nodes,
            "factor": world.factor,
        }
        for row in json.loads(printed)
    ]


def measure_steps(name: str, bucket_mib: float, world: World) -> list[dict[str, Any]]:
    """Run `bench step` on a world and return its rows."""
    printed = on_network(
        world,
        "bench",
        "step",
        name,
        f"--reductions={','.join(STEPS)}",
        f"--steps={STEPS_TIMED[name]}",
        "--repeats=5",
        "--json",
        *sets(bucket_mib),
    )
    found = json.loads(printed)
    return [
        {
            "what": f"{name}, buckets of {bucket_mib:g} MiB",
            "config": name,
            "bucket_mib": bucket_mib,
            "reduction": reduction,
            "measured_s": found["step_s"][f"firetrain {reduction}"]["median"],
            "spread": found["step_s"][f"firetrain {reduction}"]["max"]
            / found["step_s"][f"firetrain {reduction}"]["min"],
            "busy": found["busy"][f"firetrain {reduction}"],
            "nodes": world.nodes,
            "factor": world.factor,
        }
        for reduction in STEPS
    ]


def measure(folder: Path, quiet: float) -> list[dict[str, Any]]:
    """Measure what is missing in the folder, and return all rows."""
    if not (folder / "profile.json").exists():
        calibrate(folder / "profile.json", quiet)
    kept = folder / "rows.json"
    rows: list[dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else []
    for world in (*KNOWN, *HELD_OUT):
        if not any(world == World(row["nodes"], row["factor"]) for row in rows if "bytes" in row):
            rows += quietest(partial(measure_allreduces, world), quiet)
            kept.write_text(json.dumps(rows, indent=1) + "\n")
    for name, bucket_mib, world in TRAINED:
        key = name, bucket_mib, *world
        if not any(
            key == (row["config"], row["bucket_mib"], row["nodes"], row["factor"]) for row in rows if "config" in row
        ):
            rows += quietest(partial(measure_steps, name, bucket_mib, world), quiet)
            kept.write_text(json.dumps(rows, indent=1) + "\n")
    return rows


def predict(row: dict[str, Any], profile: Profile) -> dict[str, Any]:
    """The row with two predictions: by the profile, with a 95 % interval, and by the usual formula with the nominal rate."""
    name, nodes = row.get("config", BASE), row["nodes"]
    config = load_config(name, overrides(row.get("bucket_mib", 2.0))).config
    speed = MEASURED_RANKS[name] / max(nodes, PROCESSORS)
    reductions = [row["reduction"]] if "bytes" in row else list(STEPS)
    asked = Question.of(
        config, [nodes], reductions, 1, reads=False, what_if=WhatIf(bandwidth=row["factor"], compute=speed)
    )
    profile = sharing(profile, nodes)
    model = Predictor(profile, asked)
    known = Network.measured(profile)
    wire = LinkCost(known.alone.latency_s, 8 / (RATE_MBIT * row["factor"] * 1e6))
    nominal, formula = Network(wire, wire, wire), FORMULAS[row["reduction"]]
    if "bytes" in row:
        drawn = model.allreduce_s(nodes, row["reduction"], row["bytes"])
        low, high = (float(value) for value in np.percentile(drawn, [2.5, 97.5]))
        value, plain = float(np.ravel(drawn)[0]), formula.seconds(Shape(nodes, 1), row["bytes"], nominal)
        row = {**row, "draws": np.ravel(drawn)}
    else:
        found = next(one for one in model.rows() if one.reduction == row["reduction"])
        value, low, high, row = found.step_s, found.low_s, found.high_s, {**row, "named": found.is_recommended}
        whole = sum(size for size, _ in model.buckets(nodes))
        plain = found.parts["compute"] + found.parts["update"] + formula.seconds(Shape(nodes, 1), whole, nominal)
    errors = {"error": value / row["measured_s"] - 1, "plain_error": float(plain) / row["measured_s"] - 1}
    return {**row, "predicted_s": value, "low_s": low, "high_s": high, "plain_s": float(plain), **errors}


def sharing(profile: Profile, nodes: int) -> Profile:
    """Scale the per-message overhead to this number of nodes, which share the machine's processors."""
    gap, slower = profile.message_gap, max(nodes, PROCESSORS) / max(CALIBRATED.nodes, PROCESSORS)
    if gap is None:
        return profile
    scaled = gap.model_copy(update={key: slower * getattr(gap, key) for key in ("value", "low", "high")})
    return profile.model_copy(update={"message_gap": scaled})


def verdicts(rows: Sequence[dict[str, Any]], bars: dict[str, float]) -> Iterable[str]:
    """Each bar with the result, from the held-out rows that links limited."""
    held = [row for row in rows if is_held_out(row) and not row["processors"]]
    reduced, trained = ([row for row in held if key in row] for key in ("bytes", "config"))
    groups = {"allreduce": reduced, "step": trained}
    groups |= {
        f"allreduce {name}": [row for row in reduced if row["reduction"] == name]
        for name in ("ring", "parameter-server")
    }
    found = {key: mean(abs(row["error"]) for row in own) for key, own in groups.items() if own}
    plain = {key: mean(abs(row["plain_error"]) for row in own) for key, own in groups.items() if own}
    right: list[bool] = []
    lost, limited = {"": 0.0}, list[tuple[str, int, float]]()
    for place in dict.fromkeys((row["what"], row["nodes"], row["factor"]) for row in held):
        own = [row for row in rows if (row["what"], row["nodes"], row["factor"]) == place]
        if any(row["processors"] for row in own):  # one of them, perhaps the recommended one, was not limited by links
            limited.append(place)
            continue
        measured, named = sorted(own, key=lambda row: row["measured_s"]), named_of(own)
        if len(own) > 1 and measured[1]["measured_s"] > 1.05 * measured[0]["measured_s"]:
            right.append(named is measured[0])
        where = f"{named['reduction']} in place of {measured[0]['reduction']}, {place[0]}, {World(*place[1:])}"
        lost[where] = named["measured_s"] / measured[0]["measured_s"] - 1
    found |= {"fastest right": mean(right) if right else 1.0, "regret": max(lost.values())}
    for name in found:
        bar = bars[name]
        kept = found[name] >= bar if name == "fastest right" else found[name] <= bar
        usual = f" (usual formulas {plain[name]:.1%})" if name in plain else ""
        yield f"- {name}: {found[name]:.1%}{usual}, bar {bar:.0%}: {'kept' if kept else 'MISSED'}"
    yield from (f"- not ranked, because of busy processors: {what}, {World(*at)}" for what, *at in limited)
    apart = [row for row in rows if row["processors"]]
    yield f"- {len(right)} cases with a difference above 5 %, {len(lost) - 1 - len(right)} without"
    yield from (f"- lost {share:.1%}: {where}" for where, share in lost.items() if share > bars["regret"])
    yield f"- {len(held)} held-out measurements; {len(apart)} others excluded, because the processors were the bottleneck"


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot predicted against measured times of all held-out rows."""
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    draw_errors(figure.subplots(), [row for row in rows if is_held_out(row)])
    write_figure(figure, path)


def main() -> None:
    """Measure what is missing, predict, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=HERE, help="measurements; existing ones are kept")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    bars = yaml.safe_load((HERE / "bars.yaml").read_text())
    measured, profile = measure(folder.absolute(), bars["quiet"]), Profile.load(folder / "profile.json")
    rows = [{**predict(row, profile), "processors": (row["busy"] or 0.0) > bars["busy"]} for row in measured]
    for key, names in (("bytes", ALLREDUCES), ("config", STEPS)):
        print(*table([row for row in rows if key in row], names), "", sep="\n")
    print(*verdicts(rows, bars), sep="\n")
    draw(rows, folder / "errors.svg")


if __name__ == "__main__":
    main()
