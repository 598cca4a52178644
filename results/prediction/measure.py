"""All-reduces foretold and measured on networks of namespaces: python results/prediction/measure.py FOLDER.

The links are measured on 2 and on 4 nodes at one rate; held out are 3, 6 and 8 nodes, half of that rate and twice. Needs root and
iproute2; about ten minutes, with nothing else running. Writes profile.json and rows.json, and prints the table of README.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from firetrain.cluster import Link, World
from firetrain.predict.network import Network, Wire
from firetrain.predict.price import price
from firetrain.records.profile import Profile
from firetrain.topology.catalogue import find_topology

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RATE_MBIT = 100
REDUCTIONS = ("ring", "halving-doubling", "torus", "direct", "double-tree", "tree", "parameter-server")
SIZES = ("1MiB", "4MiB")
CALIBRATED = ((2, 1.0), (4, 1.0))
HELD_OUT = ((3, 1.0), (6, 1.0), (8, 1.0), (4, 0.5), (4, 2.0))


def on_network(nodes: int, factor: float, *command: str) -> None:
    """Run a firetrain command as one rank on each node."""
    network = [
        sys.executable,
        ROOT / "tests" / "network.py",
        "--nodes",
        str(nodes),
        "--rate",
        f"{round(RATE_MBIT * factor)}mbit",
    ]
    subprocess.run([*network, sys.executable, "-m", "firetrain", *command], check=True, cwd=ROOT)


def measure(folder: Path) -> list[dict[str, Any]]:
    """The rows of bench allreduce in every world, with its nodes and its rate."""
    rows = []
    for nodes, factor in (*CALIBRATED, *HELD_OUT):
        if (nodes, factor) in CALIBRATED:
            on_network(nodes, factor, "bench", "link", "--save", str(folder / "profile.json"))
        path = folder / "world.json"
        on_network(
            nodes, factor, "bench", "allreduce", "--reductions", ",".join(REDUCTIONS), "--sizes", ",".join(SIZES), "--repeats",
            "5", "--json", str(path),
        )  # fmt: skip
        rows += [{**row, "nodes": nodes, "factor": factor} for row in json.loads(path.read_text())]
        path.unlink()
    return rows


def foretell(row: dict[str, Any], profile: Profile) -> tuple[float, float]:
    """(by the plan's messages and the measured links, by the usual formula and the nominal rate), in seconds."""
    links = {link.pairs: link for link in profile.links if link.level == "between nodes"}
    together, alone = links["all"], links["one"]
    speed = together.bytes_per_s * row["factor"]
    wire = Wire(alone.latency_s, 1 / speed)
    added = 1.2e-10 if profile.s_per_added_byte is None else profile.s_per_added_byte.value
    network = Network(wire, wire, wire, added)
    world = World.even(row["nodes"], 1)
    plan = find_topology(row["reduction"])(world)
    link = Link(alone.latency_s, speed, together.latency_s)
    piece = link.piece_bytes(row["bytes"] / plan.chunks, plan.depth) if plan.topology == "double-tree" else None
    plain = float(plan.busiest()) * row["bytes"] / (RATE_MBIT * row["factor"] * 1e6 / 8)
    return price(plan, world, row["bytes"], network, piece), plain


def table(rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    """Markdown: mean absolute errors by world and reduction, ours and the usual formula's."""
    yield "| nodes | Mbit/s | " + " | ".join(REDUCTIONS) + " | all | usual formula |"
    yield "| ---: | ---: |" + " ---: |" * (len(REDUCTIONS) + 2)
    for nodes, factor in (*CALIBRATED, *HELD_OUT):
        own = [row for row in rows if (row["nodes"], row["factor"]) == (nodes, factor)]
        cells = [f"{mean(row['error'] for row in own if row['reduction'] == name):+.1%}" for name in REDUCTIONS]
        whole, plain = (f"{mean(abs(row[key]) for row in own):.1%}" for key in ("error", "plain_error"))
        note = "" if (nodes, factor) in HELD_OUT else " (calibrated)"
        yield f"| {nodes}{note} | {round(RATE_MBIT * factor)} | " + " | ".join([*cells, whole, plain]) + " |"


def verdicts(rows: Sequence[dict[str, Any]], bars: dict[str, float]) -> Iterable[str]:
    """Each bar, and what came out on the held-out worlds."""
    held = [row for row in rows if (row["nodes"], row["factor"]) in HELD_OUT]
    found = {"allreduce_mean_absolute_error": mean(abs(row["error"]) for row in held)}
    for name in ("ring", "parameter-server"):
        found[f"{name}_mean_absolute_error"] = mean(abs(row["error"]) for row in held if row["reduction"] == name)
    right, lost = [], [0.0]
    for key in sorted({(row["nodes"], row["factor"], row["bytes"]) for row in held}):
        own = [row for row in held if (row["nodes"], row["factor"], row["bytes"]) == key]
        measured = sorted(own, key=lambda row: row["median_s"])
        named = min(own, key=lambda row: row["foretold_s"])
        if measured[1]["median_s"] > 1.05 * measured[0]["median_s"]:
            right.append(named is measured[0])
        else:
            lost.append(named["median_s"] / measured[0]["median_s"] - 1)
    found |= {"fastest_right": mean(right) if right else 1.0, "regret": max(lost)}
    for name, bar in bars.items():
        kept = found[name] >= bar if name == "fastest_right" else found[name] <= bar
        yield f"- {name}: {found[name]:.1%}, bar {bar:.0%}: {'kept' if kept else 'MISSED'}"
    yield f"- {len(right)} cases with a difference above 5 %, {len(lost) - 1} without"


def main() -> None:
    """Measure unless it was, foretell, and print."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "rows.json"
    rows = json.loads(kept.read_text()) if kept.exists() else measure(folder)
    profile = Profile.load(folder / "profile.json")
    for row in rows:
        row["foretold_s"], row["plain_s"] = foretell(row, profile)
        row["error"] = row["foretold_s"] / row["median_s"] - 1
        row["plain_error"] = row["plain_s"] / row["median_s"] - 1
    kept.write_text(json.dumps(rows, indent=1) + "\n")
    print(*table(rows), "", *verdicts(rows, yaml.safe_load((HERE / "bars.yaml").read_text())), sep="\n")


if __name__ == "__main__":
    main()
