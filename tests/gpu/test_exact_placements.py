"""Placed models have the gradients and losses of one process in float64, on ranks that may share a GPU, too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from exact import apart, both, largest, whole_gradients, whole_losses

from firetrain.bench.gpu import ranks
from firetrain.transport.transport import Transport

COUNTS = [7, 5, 1]
STRATEGIES = (
    "one-weird-trick", "tensor-parallel:split=alternate", "grid:images=2,outputs=2",
    "pipeline:stages=2,micro_batches=3,schedule=1f1b,replicas=2",
)  # fmt: skip
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def strategies_of(model: str) -> tuple[str, ...]:
    """Those that suit a model: One Weird Trick divides fully connected layers, which SqueezeNet has not."""
    return STRATEGIES if model != "squeezenet1_1" else STRATEGIES[1:]


def cases(model: str, truth: Path, transport: Transport) -> Iterator[tuple[str, Any]]:
    for strategy in strategies_of(model):
        yield strategy, both(transport, model, strategy, COUNTS, truth)


@pytest.mark.parametrize(
    ("device", "model"),
    [("cpu", "lenet")]
    + [
        pytest.param("cuda", model, marks=on_a_gpu)
        for model in ("lenet", "alexnet", "squeezenet1_1", "googlenet_paper")
    ],
)
def test_four_ranks_have_the_gradients_and_losses_of_one_process(
    device: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "_ends_s", time.monotonic() + 500)
    torch.save(whole_gradients(model, COUNTS), tmp_path / "truth.pt")
    losses = whole_losses(model)
    library, found = ranks.on_ranks_sharing(partial(cases, model, tmp_path / "truth.pt"), torch.device(device), 4)
    assert library == ("nccl" if device == "cuda" else "gloo"), library
    assert not [one["error"] for one in found if "error" in one]
    for strategy, (gradients, _) in found[0].items():
        assert gradients < 1e-12, strategy
        assert largest(apart(one[strategy][1], losses) for one in found) < 1e-9, strategy
    assert tuple(found[0]) == strategies_of(model)
