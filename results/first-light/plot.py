"""Draw reductions.svg from runs.json and print the table of README.md: python plot.py (needs matplotlib)."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib
from matplotlib.figure import Figure

HERE = Path(__file__).parent
MEASURES = {"time-to-accuracy s": "time-to-accuracy in s", "exposed comm %": "exposed communication in % of a step"}


def values(runs: list[dict[str, Any]], reduction: str, measure: str) -> list[float]:
    """The measure of each run of a reduction."""
    return [run[measure] for run in runs if run["reduction"] == reduction]


def spread(numbers: list[float], digits: int = 1) -> str:
    """The median, with the smallest and the largest number."""
    return f"{median(numbers):.{digits}f} ({min(numbers):.{digits}f} to {max(numbers):.{digits}f})"


def main() -> None:
    """One panel per measure: every run a dot, the median a bar."""
    runs = json.loads((HERE / "runs.json").read_text())
    names = list(dict.fromkeys(run["reduction"] for run in runs))
    figure = Figure(figsize=(9, 3), layout="constrained")
    for axes, (measure, title) in zip(figure.subplots(1, 2, sharey=True), MEASURES.items(), strict=True):
        for place, name in enumerate(names):
            found = values(runs, name, measure)
            axes.barh(place, median(found), color="#9bb7d4", height=0.6)
            axes.plot(found, [place] * len(found), "o", color="#1f3b57", markersize=4)
        axes.set_yticks(range(len(names)), names)
        axes.set_xlabel(title)
        axes.set_xlim(left=0)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].invert_yaxis()
    with matplotlib.rc_context({"svg.hashsalt": "reductions"}):  # the same numbers make the same file
        figure.savefig(HERE / "reductions.svg", metadata={"Date": None})
    print(
        "| reduction | time-to-accuracy, s | epochs | top-1, % | images/s | exposed communication, % |\n|---|---|---|---|---|---|"
    )
    for name in names:
        cells = [spread(values(runs, name, m), d) for m, d in (("time-to-accuracy s", 1), ("epochs", 0))]
        cells.append(spread([100 * top1 for top1 in values(runs, name, "top-1")]))
        cells += [spread(values(runs, name, m), d) for m, d in (("images/s", 0), ("exposed comm %", 0))]
        print(f"| `{name}` | {' | '.join(cells)} |")


main()
