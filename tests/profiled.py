"""A profile with numbers that a test knows, layers, and questions about them."""

from __future__ import annotations

from typing import Any

from firetrain.predict.formulas import FORMULAS
from firetrain.predict.question import Question
from firetrain.records.profile import MeasuredLink, MeasuredStep, Profile, Quantity
from firetrain.strategy import Layer

REDUCTIONS = tuple(FORMULAS)
# a convolution with most of the work, and two fully connected layers with most of the weights
LAYERS = (
    Layer("conv", "weights", (), 3, 8, made_elements=100, output_elements=4, weights=9, biases=1, operations=900_000),
    Layer("fc1", "weights", ("conv",), 8, 64, weights=400, biases=1, operations=50_000, is_linear=True),
    Layer("fc2", "weights", ("fc1",), 64, 64, weights=1, biases=1, operations=50_000, is_linear=True),
    Layer("loss", "whole", ("fc2",), 64, 64, is_loss=True),
)


def profile(**changes: Any) -> Profile:
    def link(level: str, pairs: str, latency_s: float, bytes_per_s: float) -> dict[str, Any]:
        return {"level": level, "pairs": pairs, "transport": "nccl", "node_of": (0, 1), "latency_s": latency_s,
                "bytes_per_s": bytes_per_s, "medians_s": {}, "count": 9, "spread": 0.1}  # fmt: skip

    def step(batch: int) -> MeasuredStep:
        ready = tuple((4 * 100_000, share / 10) for share in range(1, 11))
        return MeasuredStep(
            model="m@32", image_size=32, batch_per_rank=batch, device="x", forward_s=Quantity(value=1e-3 + batch * 1e-4),
            backward_s=Quantity(value=2e-3 + batch * 2e-4, low=0.9 * (2e-3 + batch * 2e-4), high=1.1 * (2e-3 + batch * 2e-4)),
            update_s=Quantity(value=5e-4), ready=ready, jitter=Quantity(value=0.02),
        )  # fmt: skip

    links = [
        link("inside a node", "all", 4e-6, 1e11),
        link("between nodes", "one", 1e-5, 2e10),
        link("between nodes", "all", 1e-5, 1e10),
    ]
    found = Profile(links=tuple(MeasuredLink(**one) for one in links), steps=(step(4), step(16)))
    return found.model_copy(update=changes)


def reading(images_per_s: float) -> tuple[MeasuredStep, ...]:
    return tuple(
        step.model_copy(update={"images_per_s_read": Quantity(value=images_per_s)}) for step in profile().steps
    )


def question(**changes: Any) -> Question:
    facts = {"model": "m@32", "counts": [1, 2, 4, 64], "reductions": REDUCTIONS, "per_node": 4, "global_batch": 64,
             "bucket_bytes": 1 << 20}  # fmt: skip
    return Question(**{**facts, **changes})
