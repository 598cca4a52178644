"""Print the tables of README.md from what measure.sh wrote, and draw the plot. Usage: table.py [FOLDER]"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from firetrain.config.spec import Spec
from firetrain.records.figure import write_figure
from firetrain.strategy.schedule import bubble, uneven_bubble

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
BATCHES = (32, 64, 128)
FIRST = "data-parallel"
Facts = dict[str, Any]


def read(name: str) -> dict[str, Facts]:
    """What bench strategies found of each strategy and reference."""
    found: dict[str, Facts] = json.loads((FOLDER / f"{name}.json").read_text())["strategies"]
    return found


def alexnet(batch: int) -> dict[str, tuple[Facts, str]]:
    """The facts of each strategy, and its speed relative to data-parallel training, by name.

    Two commands measured them. The speeds of the second one's are relative to the medians of the first one's, and marked by *.
    """
    whole = read(f"alexnet-{batch}")
    first_s = whole[FIRST]["step_s"]["median"]
    found = {name: (facts, span(facts["speedup"], 1, ".2f")) for name, facts in whole.items()}
    for name, facts in read(f"alexnet-{batch}-others").items():
        found.setdefault(name, (facts, f"{first_s / facts['step_s']['median']:.2f}*"))
    return found


def span(seconds: dict[str, float], factor: float, digits: str) -> str:
    """The median with the range."""
    low, value, high = (factor * seconds[key] for key in ("min", "median", "max"))
    return f"{value:{digits}} ({low:{digits}} to {high:{digits}})"


def speeds() -> None:
    """Print a row per strategy of AlexNet: milliseconds and speed for each batch."""
    columns = {batch: alexnet(batch) for batch in BATCHES}
    print("| strategy | " + " | ".join(f"{batch}: ms a step | speed" for batch in BATCHES) + " |")
    print("|---|" + "---:|---|" * len(BATCHES))
    for name in columns[BATCHES[0]]:
        cells = [
            f"{1e3 * facts['step_s']['median']:.0f} | {speed}" for facts, speed in (columns[b][name] for b in BATCHES)
        ]
        print(f"| `{name}` | {' | '.join(cells)} |")


def bytes_sent() -> None:
    """Print a row per strategy of AlexNet: megabytes that the busiest rank sent, and the difference to the prediction."""
    print("\n| strategy | " + " | ".join(f"{batch}: measured | predicted | difference" for batch in BATCHES) + " |")
    print("|---|" + "---:|---:|---:|" * len(BATCHES))
    for name in alexnet(BATCHES[0]):
        cells = []
        for batch in BATCHES:
            facts, _ = alexnet(batch)[name]
            sent, expected = max(facts["sent_bytes"]) / 1e6, facts.get("expected_bytes")
            own = f"{max(expected) / 1e6:.2f} | {sent / (max(expected) / 1e6) - 1:+.1%}" if expected else "| "
            cells.append(f"{sent:.2f} | {own}")
        print(f"| `{name}` | {' | '.join(cells)} |")


def googlenet() -> None:
    """Print GoogLeNet's steps under One Weird Trick beside data-parallel training."""
    print("\n| batch | strategy | ms a step (range) | speed (range) | MB sent, measured | predicted |")
    print("|---|---|---|---|---:|---:|")
    for batch in (32, 128):
        for name, facts in read(f"googlenet-{batch}").items():
            sent, predicted = (max(facts[key]) / 1e6 for key in ("sent_bytes", "expected_bytes"))
            times = f"{span(facts['step_s'], 1e3, '.0f')} | {span(facts['speedup'], 1, '.2f')}"
            print(f"| {batch} | `{name}` | {times} | {sent:.2f} | {predicted:.2f} |")


def bubbles() -> None:
    """Print idle shares of pipelines beside (S - 1) / (M + S - 1), corrected for stages that take differently long."""
    print("\n| pipeline | ms a step (range) | idle, measured | formula | formula with imbalance | difference |")
    print("|---|---|---:|---:|---:|---:|")
    for name, facts in read("bubbles").items():
        if "compute_s" not in facts:
            print(f"| {name} | {span(facts['step_s'], 1e3, '.0f')} | | | | |")
            continue
        parameters = dict(Spec.parse(name).parameters)
        ideal = bubble(int(parameters["stages"]), int(parameters["micro_batches"]))
        expected = uneven_bubble(
            str(parameters.get("schedule", "gpipe")), facts["compute_s_by_rank"], int(parameters["micro_batches"])
        )
        idle = facts["bubble_s"] / (facts["bubble_s"] + facts["compute_s"])
        shares = f"{idle:.3f} | {ideal:.3f} | {expected:.3f} | {idle - expected:+.3f}"
        print(f"| `{name}` | {span(facts['step_s'], 1e3, '.0f')} | {shares} |")


def plot() -> None:
    """Draw the speeds of AlexNet's strategies relative to data-parallel training, by batch."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    names = list(alexnet(BATCHES[0]))
    for number, batch in enumerate(BATCHES):
        found = alexnet(batch)
        first_s = found[FIRST][0]["step_s"]["median"]
        values = [first_s / found[name][0]["step_s"]["median"] for name in names]
        axes.barh([y + 0.27 * (number - 1) for y in range(len(names))], values, height=0.25, label=f"batch {batch}")
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set(
        xlabel="speed relative to data-parallel training with the ring", title="AlexNet, 128 pixels, 4 nodes, 1 Gbit/s"
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    for path in write_figure(figure, FOLDER / "strategies", ".svg"):
        print(path, file=sys.stderr)


if __name__ == "__main__":
    speeds()
    bytes_sent()
    googlenet()
    bubbles()
    plot()
