"""Print the tables of README.md from what measure.sh wrote, and draw the plot. Usage: table.py [FOLDER]"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from firetrain.config.spec import Spec
from firetrain.records.figure import write_figure
from firetrain.strategy.schedule import bubble

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
BATCHES = (32, 64, 128)


def read(name: str) -> dict[str, Any]:
    """What bench strategies wrote."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def steps(model: str, batch: int) -> None:
    """Print a row per strategy: milliseconds, speedup and bytes."""
    found = read(f"{model}-{batch}")["strategies"]
    print(f"\n{model}, batch {batch}\n")
    print(
        "| strategy | ms a step (range) | speedup (range) | MB sent by the busiest rank, measured | predicted | difference |"
    )
    print("|---|---|---|---|---|---|")
    for name, facts in found.items():
        sent, expected = max(facts["sent_bytes"]) / 1e6, facts.get("expected_bytes")
        predicted = f"{max(expected) / 1e6:.1f} | {sent / (max(expected) / 1e6) - 1:+.1%}" if expected else " | "
        print(
            f"| `{name}` | {span(facts['step_s'], 1e3, '.0f')} | {span(facts['speedup'], 1, '.2f')} | {sent:.1f} | {predicted} |"
        )


def span(seconds: dict[str, float], factor: float, digits: str) -> str:
    """The median with the range."""
    low, value, high = (factor * seconds[key] for key in ("min", "median", "max"))
    return f"{value:{digits}} ({low:{digits}} to {high:{digits}})"


def bubbles() -> None:
    """Print idle shares of pipelines beside (S - 1) / (M + S - 1), corrected for stages that take differently long."""
    found = read("bubbles")
    print("\n| pipeline | ms a step (range) | idle, measured | formula | formula with imbalance | difference |")
    print("|---|---|---|---|---|---|")
    for name, facts in found["strategies"].items():
        if "compute_s" not in facts:
            print(f"| {name} | {span(facts['step_s'], 1e3, '.0f')} | | | | |")
            continue
        parameters = dict(Spec.parse(name).parameters)
        ideal = bubble(int(parameters["stages"]), int(parameters["micro_batches"]))
        times = facts["compute_s_by_rank"]
        expected = 1 - (1 - ideal) * (sum(times) / len(times)) / max(times)
        idle = facts["bubble_s"] / (facts["bubble_s"] + facts["compute_s"])
        shares = f"{idle:.3f} | {ideal:.3f} | {expected:.3f} | {idle - expected:+.3f}"
        print(f"| `{name}` | {span(facts['step_s'], 1e3, '.0f')} | {shares} |")


def plot() -> None:
    """Draw the speedups of AlexNet's strategies over data-parallel training, by batch."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    by_batch = {
        batch: {**read(f"alexnet-{batch}-others")["strategies"], **read(f"alexnet-{batch}")["strategies"]}
        for batch in BATCHES
    }
    names = list(by_batch[32])
    first_s = {batch: read(f"alexnet-{batch}")["strategies"]["data-parallel"]["step_s"]["median"] for batch in BATCHES}
    for number, batch in enumerate(BATCHES):
        values = [first_s[batch] / by_batch[batch][name]["step_s"]["median"] for name in names]
        axes.barh([y + 0.27 * (1 - number) for y in range(len(names))], values, height=0.25, label=f"batch {batch}")
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set(
        xlabel="speed relative to data-parallel training with the ring", title="AlexNet, 128 pixels, 4 nodes, 1 Gbit/s"
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    for path in write_figure(figure, FOLDER / "strategies", ".svg"):
        print(path, file=sys.stderr)


if __name__ == "__main__":
    for batch in BATCHES:
        steps("alexnet", batch)
        others = read(f"alexnet-{batch}-others")["strategies"]
        for name, facts in others.items():
            times = f"{span(facts['step_s'], 1e3, '.0f')} ms, {span(facts['speedup'], 1, '.2f')}"
            print(f"beside One Weird Trick, batch {batch}: {name}: {times}")
    for batch in (32, 128):
        steps("googlenet", batch)
    bubbles()
    plot()
