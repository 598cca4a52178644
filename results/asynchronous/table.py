"""The table of measured and predicted seconds to 95 %, from the stored runs and simulations.

Needs the files of measure.py and virtual.py in this folder. Usage: python results/asynchronous/table.py
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import median
from typing import Any

from firetrain.config.spec import Spec

HERE = Path(__file__).parent
BATCH = 32


def main() -> None:
    """Print a Markdown table for each machine."""
    for machine in ("even", "slow"):
        simulated = json.loads((HERE / f"simulated-{machine}.json").read_text())
        runs = by_method(HERE / machine)
        print(f"{machine}\n")
        print(
            "| | seconds to 95 % | reached | in steps | predicted | error | images/s | predicted | error | idle | predicted "
            "| staleness | dropped |"
        )
        print("| --- |" + " ---: |" * 12)
        for method, own in runs.items():
            print("| " + " | ".join(cells(method, own, [one for one in simulated if one["policy"] == method])) + " |")
        print()


def by_method(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The runs of each method: summary, and the evaluation that met the target."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*/summary.json")):
        config = json.loads((path.parent / "run.json").read_text())["config"]
        spec = Spec.parse(config["strategy"]["name"])
        parameters = {**dict(spec.parameters), **config["strategy"]["parameters"]}
        policy = parameters.pop("policy", None)
        extra = ",".join(f"{key}={value}" for key, value in parameters.items())
        method = "ring" if policy is None else f"{policy}:{extra}" if extra else policy
        lines = [json.loads(line) for line in (path.parent / "metrics.jsonl").read_text().splitlines()]
        hit = next((one for one in lines if one["kind"] == "evaluation" and one["top1"] >= 0.95), None)
        found.setdefault(method, []).append({"hit": hit, **json.loads(path.read_text())})
    return found


def cells(method: str, runs: list[dict[str, Any]], simulated: list[dict[str, Any]]) -> list[str]:
    """A row: medians over seeds; a missed target counts as infinity."""
    whole = median(one["hit"]["elapsed_s"] if one["hit"] else math.inf for one in runs)
    steps = median(one["hit"]["train_s"] if one["hit"] else math.inf for one in runs)
    reached = f"{sum(one['hit'] is not None for one in runs)} of {len(runs)}"
    speed = median(one["images_per_s"] for one in runs)
    if not simulated:
        return [
            f"`{method}`",
            seconds(whole),
            reached,
            seconds(steps),
            "-",
            "-",
            f"{speed:.0f}",
            "-",
            "-",
            "-",
            "-",
            "-",
            "-",
        ]
    predicted = median(math.inf if one["target_s"] is None else one["target_s"] for one in simulated)
    faster = median(images(one) / one["seconds"] for one in simulated)
    facts = [one["reduction"] for one in runs]
    return [
        f"`{method}`", seconds(whole), reached, seconds(steps), seconds(predicted), error(predicted, steps), f"{speed:.0f}",
        f"{faster:.0f}", error(faster, speed), f"{median(map(idle, runs)):.0%}",
        f"{median(one['idle_share'] for one in simulated):.0%}", f"{median(one['mean_staleness'] for one in facts):.2f}",
        f"{median(one['dropped'] for one in facts):g}",
    ]  # fmt: skip


def images(one: dict[str, Any]) -> float:
    """The images of all gradients that arrived."""
    spare = dict(word.split("=") for word in one["policy"].partition(":")[2].split(",") if word).get("spare", 0)
    return float(one["gradients"] * BATCH / (one["workers"] - int(spare)))


def idle(run: dict[str, Any]) -> float:
    """The share of the workers' time in steps in which they do not compute."""
    parts = [run.get(key, 0.0) for key in ("compute_s", "exposed_communication_s", "data_s")]
    return 1 - parts[0] / sum(parts)


def seconds(number: float) -> str:
    """Seconds, or that there are none."""
    return f"{number:.1f}" if math.isfinite(number) else "not reached"


def error(predicted: float, measured: float) -> str:
    """The relative error of a prediction."""
    return f"{predicted / measured - 1:+.0%}" if math.isfinite(predicted) and math.isfinite(measured) else "-"


if __name__ == "__main__":
    main()
