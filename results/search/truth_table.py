"""Prints the tables of predicted and measured steps, from truth.json. Usage: python results/search/truth_table.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAMES = ("data-parallel", "one-weird-trick", "pipeline", "found")
# the limits of what is told below the table
ERROR, LOSS = 0.10, 0.05


def main() -> None:
    """Print a row for each case, and what must be true of all of them."""
    cases = json.loads((HERE / "truth.json").read_text())
    print(
        "| case | "
        + " | ".join(f"{name} ms | measured | error" for name in NAMES)
        + " | fastest | lost | speed before, after |"
    )
    print("|---|" + "---:|" * (3 * len(NAMES)) + "---|---:|---:|")
    for case, found in cases.items():
        steps = by_kind(found["steps"])
        cells = [cell for name in NAMES for cell in cells_of(steps.get(kind(found.get(name, name))))]
        paces = " ".join(f"{found[key]:.2f}" for key in ("pace", "pace_after") if key in found) or "-"
        print(f"| {case} | {' | '.join(cells)} | {fastest(steps)} | {lost(found):.1%} | {paces} |")
    errors = {case: [abs(error(step)) for step in found["steps"].values()] for case, found in cases.items()}
    every = [one for some in errors.values() for one in some]
    losses = {case: lost(found) for case, found in cases.items()}
    print(f"\nmean error of {len(every)} steps: {mean(every):.1%}")
    print(
        f"cases with a mean error above {ERROR:.0%}:", above({case: mean(some) for case, some in errors.items()}, ERROR)
    )
    alexnet = {case: speedup(found) for case, found in cases.items() if case.startswith("alexnet")}
    print("what was found for AlexNet, times as fast as data-parallel training:", told(alexnet))
    print(f"cases in which what is recommended loses more than {LOSS:.0%}:", above(losses, LOSS))


def by_kind(steps: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The steps by name, without the parameters of the pipeline."""
    return {kind(name): step for name, step in steps.items()}


def kind(name: str) -> str:
    """A strategy without its parameters."""
    return name.partition(":")[0]


def cells_of(step: dict[str, float] | None) -> list[str]:
    """Predicted and measured milliseconds, and the error."""
    if step is None:
        return ["-", "-", "-"]
    return [f"{1000 * step['predicted_s']:.0f}", f"{1000 * step['measured_s']:.0f}", f"{error(step):+.0%}"]


def error(step: dict[str, float]) -> float:
    """The relative error of a prediction."""
    return step["predicted_s"] / step["measured_s"] - 1


def fastest(steps: dict[str, dict[str, float]]) -> str:
    """The name of the fastest step by measurement."""
    return min(steps, key=lambda name: steps[name]["measured_s"])


def lost(case: dict[str, Any]) -> float:
    """By how much the step that is recommended is slower than the fastest one."""
    steps = case["steps"]
    return float(steps[case["recommended"]]["measured_s"] / steps[fastest(steps)]["measured_s"] - 1)


def speedup(case: dict[str, Any]) -> float:
    """How many times faster what was found is than data-parallel training, as measured."""
    steps = case["steps"]
    return float(steps["data-parallel"]["measured_s"] / steps[case["found"]]["measured_s"])


def told(values: dict[str, float]) -> str:
    """Values by name."""
    return ", ".join(f"{name} {value:.1f}" for name, value in values.items())


def above(values: dict[str, float], limit: float) -> str:
    """The names of the values above a limit."""
    return ", ".join(f"{name} ({value:.0%})" for name, value in values.items() if value > limit) or "none"


def mean(values: list[float]) -> float:
    """The arithmetic mean."""
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
