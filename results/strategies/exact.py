"""Writes exact.json: how far gradients and losses of every strategy are from those of one process, in float64.

For AlexNet, LeNet (also with two classes, fewer than ranks), SqueezeNet 1.1 and GoogLeNet (with and without heads) on 1, 2,
3, 4, 6 and 8 ranks, with batches that divide nothing, a smaller last batch and fewer images than ranks. Cases that exact.json
has are left out. Usage: python results/strategies/exact.py [MODEL ...]
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from exact import apart, both, largest, whole_gradients, whole_losses  # noqa: E402
from ranks import on_ranks  # noqa: E402

MODELS = ("lenet", "lenet+few", "squeezenet1_1", "alexnet", "googlenet_paper", "googlenet_paper+heads")
RANKS = (1, 2, 3, 4, 6, 8)
STRATEGIES = (
    "data-parallel", "one-weird-trick", "one-weird-trick:replicas=N", "tensor-parallel:split=outputs",
    "tensor-parallel:split=inputs", "tensor-parallel:split=alternate", "tensor-parallel:split=alternate,replicas=N",
    "tensor-parallel:split=outputs,replicas=N", "tensor-parallel:split=inputs,replicas=N",
    "grid:images=2,outputs=N", "grid:images=N,outputs=2", "branch-parallel", "branch-parallel:replicas=N",
    "pipeline", "pipeline:stages=2,replicas=N", "pipeline:micro_batches=3", "pipeline:micro_batches=3,schedule=1f1b",
    "pipeline:stages=2,replicas=N,micro_batches=3,schedule=1f1b",
)  # fmt: skip
COUNTS = [7, 5, 1]
FILE = HERE / "exact.json"


def main(models: list[str]) -> None:
    """Measure what is missing, and write after every case, so that it can be stopped."""
    found: dict[str, dict[str, object]] = json.loads(FILE.read_text()) if FILE.exists() else {}
    for model in models or MODELS:
        missing = [case for case in dict.fromkeys(cases()) if f"{model} {' '.join(map(str, case))}" not in found]
        if not missing:
            continue
        with tempfile.TemporaryDirectory() as folder:
            truth = Path(folder) / "gradients.pt"
            torch.save(whole_gradients(model, COUNTS), truth)
            losses = whole_losses(model)
            for strategy, ranks in missing:
                key = f"{model} {strategy} {ranks}"
                found[key] = measured(model, strategy, ranks, truth, losses)
                FILE.write_text(json.dumps(found, indent=1) + "\n")
                print(key, found[key], flush=True)


def cases() -> Iterator[tuple[str, int]]:
    """Strategies and numbers of ranks."""
    for ranks in RANKS:
        for strategy in STRATEGIES:
            if "=N" not in strategy or ranks % 2 == 0:
                yield strategy.replace("=N", f"={ranks // 2}"), ranks


def measured(model: str, strategy: str, ranks: int, truth: Path, losses: list[float]) -> dict[str, object]:
    """The differences of a case, or the reason why the strategy does not suit the model or the ranks."""
    try:
        found = on_ranks(ranks, both, model, strategy, COUNTS, truth, timeout_s=900, limit_s=1800)
    except AssertionError as error:
        reason = str(error).strip().splitlines()[-1]
        if "UserError" not in reason:
            raise
        return {"refused": reason.partition("UserError: ")[2]}
    return {"gradients": found[0][0], "losses": largest(apart(mine, losses) for _, mine in found)}


if __name__ == "__main__":
    main(sys.argv[1:])
