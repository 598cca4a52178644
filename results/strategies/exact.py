"""Writes exact.json: how far gradients and losses of every strategy are from those of one process, in float64.

For AlexNet, LeNet, SqueezeNet 1.1 and GoogLeNet (with and without auxiliary heads) on 1, 2, 3, 4, 6 and 8 ranks, with
batches that divide nothing, a smaller last batch and fewer images than ranks. Cases that exact.json has
are left out. Usage: python results/strategies/exact.py [MODEL ...]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from exact import curves, gradients  # noqa: E402
from ranks import on_ranks  # noqa: E402

from firetrain.errors import UserError  # noqa: E402

MODELS = ("lenet", "squeezenet1_1", "alexnet", "googlenet_paper", "googlenet_paper+heads")
RANKS = (1, 2, 3, 4, 6, 8)
STRATEGIES = (
    "data-parallel", "one-weird-trick", "tensor-parallel:split=outputs", "tensor-parallel:split=inputs",
    "tensor-parallel:split=alternate", "grid:images=2,outputs=N", "branch-parallel", "pipeline", "pipeline:stages=2,replicas=N",
)  # fmt: skip
COUNTS = [7, 5, 1]
FILE = HERE / "exact.json"


def main(models: list[str]) -> None:
    """Measure what is missing, and write after every case, so that it can be stopped."""
    found: dict[str, dict[str, object]] = json.loads(FILE.read_text()) if FILE.exists() else {}
    for model in models or MODELS:
        for ranks in RANKS:
            for strategy in STRATEGIES:
                if "=N" in strategy and ranks % 2:
                    continue
                name = strategy.replace("=N", f"={ranks // 2}")
                key = f"{model} {name} {ranks}"
                if key not in found:
                    found[key] = measured(model, name, ranks)
                    FILE.write_text(json.dumps(found, indent=1) + "\n")
                    print(key, found[key], flush=True)


def measured(model: str, strategy: str, ranks: int) -> dict[str, object]:
    """The differences of a case, or the reason why the strategy does not suit the model or the ranks."""
    try:
        of_gradients = max(on_ranks(ranks, gradients, model, strategy, COUNTS, limit_s=900))
        of_losses = max(on_ranks(ranks, curves, model, strategy, limit_s=1800))
    except (AssertionError, UserError) as error:
        reason = str(error).strip().splitlines()[-1]
        if "UserError" not in reason:
            raise
        return {"refused": reason.partition("UserError: ")[2]}
    return {"gradients": of_gradients, "losses": of_losses}


if __name__ == "__main__":
    main(sys.argv[1:])
