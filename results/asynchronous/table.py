"""The table of measured and predicted seconds to 95 %, from the stored runs and simulations.

Needs the files of measure.py in this folder. Usage: python results/asynchronous/table.py
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from firetrain.config.spec import Spec

HERE = Path(__file__).parent
BATCH, TARGET = 32, 0.95
HEADINGS = (
    "", "seconds to 95 % (seeds)", "epochs", "predicted", "in steps", "predicted", "error", "images/s", "predicted", "error",
    "idle", "predicted", "staleness", "predicted", "largest gap", "dropped",
)  # fmt: skip


def main() -> None:
    """Print a Markdown table for each machine."""
    for machine in ("even", "slow"):
        simulated = json.loads((HERE / f"simulated-{machine}.json").read_text())
        (ring,) = json.loads((HERE / f"ring-{machine}.json").read_text())["rows"]
        print(f"{machine}\n\n| {' | '.join(HEADINGS)} |\n|---|{'---:|' * (len(HEADINGS) - 1)}")
        for method, own in by_method(HERE / machine).items():
            predicted = [one for one in simulated if one["policy"] == method]
            row = cells_of_policy(own, predicted) if predicted else cells_of_ring(own, ring)
            print(f"| `{method}` | {' | '.join(row)} |")
        print()


def by_method(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The runs of each method: summary, and the evaluation that met the target; of one that diverged there is neither."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*/run.json")):
        if path.parent.suffix == ".draft":
            continue
        config = json.loads(path.read_text())["config"]
        spec = Spec.parse(config["strategy"]["name"])
        parameters = {**dict(spec.parameters), **config["strategy"]["parameters"]}
        policy = parameters.pop("policy", None)
        extra = ",".join(f"{key}={value}" for key, value in parameters.items())
        method = "ring" if policy is None else f"{policy}:{extra}" if extra else policy
        metrics = path.parent / "metrics.jsonl"  # a run that diverged in its first steps has none
        lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
        hit = next((one for one in lines if one["kind"] == "evaluation" and one["top1"] >= TARGET), None)
        summary = path.parent / "summary.json"
        told = json.loads(summary.read_text()) if summary.exists() else None
        found.setdefault(method, []).append({"hit": hit if told else None, "told": told})
    return found


def cells_of_policy(runs: list[dict[str, Any]], simulated: list[dict[str, Any]]) -> list[str]:
    """A row beside what was simulated."""
    predicted = median(math.inf if one["target_s"] is None else one["target_s"] for one in simulated)
    told = [one["told"] for one in runs if one["told"]]
    facts = [one["reduction"] for one in told]
    return [
        *common(runs, map(epochs, simulated), predicted, median(images(one) / one["seconds"] for one in simulated)),
        among(map(idle, told), "{:.0%}"), f"{median(one['idle_share'] for one in simulated):.0%}",
        among((one["mean_staleness"] for one in facts), "{:.2f}"), f"{median(one['mean_staleness'] for one in simulated):.2f}",
        among((one["largest_gap"] for one in facts if "largest_gap" in one), "{:g}"),
        among((one["dropped"] for one in facts), "{:g}"),
    ]  # fmt: skip


def cells_of_ring(runs: list[dict[str, Any]], predicted: dict[str, Any]) -> list[str]:
    """A row beside what was predicted of a step; the number of steps is that of the runs."""
    steps = median(one["hit"]["step"] if one["hit"] else math.inf for one in runs)
    return [*common(runs, (), steps * predicted["step_s"], predicted["images_per_s"]), *["-"] * 6]


def common(
    runs: list[dict[str, Any]], predicted_epochs: Iterable[float], predicted_s: float, predicted_images_per_s: float
) -> list[str]:
    """Medians over seeds; a missed target counts as infinity. Images per second are those of the runs that did not diverge."""
    whole = [one["hit"]["elapsed_s"] if one["hit"] else math.inf for one in runs]
    steps = median(one["hit"]["train_s"] if one["hit"] else math.inf for one in runs)
    speeds = [one["told"]["images_per_s"] * applied_share(one["told"]["reduction"]) for one in runs if one["told"]]
    speed = median(speeds) if speeds else math.inf
    hits = [one["hit"]["epoch"] if one["hit"] else math.inf for one in runs]
    return [
        f"{seconds(median(whole))} ({' '.join(map(seconds, sorted(whole)))})", counts(hits), counts(predicted_epochs),
        seconds(steps), seconds(predicted_s), error(predicted_s, steps), among(speeds, "{:.0f}"),
        f"{predicted_images_per_s:.0f}", error(predicted_images_per_s, speed),
    ]  # fmt: skip


def epochs(one: dict[str, Any]) -> float:
    """After how many epochs a simulation reached the target: there is a point for each."""
    return next((number for number, (_, _, top1, _) in enumerate(one["curve"], 1) if top1 >= TARGET), math.inf)


def counts(numbers: Iterable[float]) -> str:
    """Whole numbers in ascending order; a dash if none is finite."""
    return " ".join(f"{number:g}" for number in sorted(numbers) if math.isfinite(number)) or "-"


def among(numbers: Iterable[float], form: str) -> str:
    """The median in this form; a dash if there is no number."""
    found = list(numbers)
    return form.format(median(found)) if found else "-"


def images(one: dict[str, Any]) -> float:
    """The images of all gradients that were applied."""
    spare = dict(word.split("=") for word in one["policy"].partition(":")[2].split(",") if word).get("spare", 0)
    return float((one["gradients"] - one["dropped"]) * BATCH / (one["workers"] - int(spare)))


def applied_share(facts: dict[str, Any]) -> float:
    """The share of the gradients that were applied; the ring drops none."""
    applied = sum(facts.get("staleness", {"0": 1}).values())
    return float(applied / (applied + facts.get("dropped", 0)))


def idle(run: dict[str, Any]) -> float:
    """The share of the workers' time in steps in which they do not compute."""
    parts = [run.get(key, 0.0) for key in ("compute_s", "exposed_communication_s", "data_s")]
    return 1 - parts[0] / sum(parts)


def seconds(number: float) -> str:
    """Seconds, or that there are none."""
    return f"{number:.1f}" if math.isfinite(number) else "never"


def error(predicted: float, measured: float) -> str:
    """The relative error of a prediction."""
    return f"{predicted / measured - 1:+.0%}" if math.isfinite(predicted) and math.isfinite(measured) else "-"


if __name__ == "__main__":
    main()
