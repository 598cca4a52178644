"""Gradients that are not finite are detected immediately on the CPU, and later where the flag is read only sometimes."""

from __future__ import annotations

import pytest
import torch

from firetrain.training import divergence
from firetrain.training.divergence import Divergence, diverged

GOOD, BAD = torch.tensor(True), torch.tensor(False)


def test_on_the_cpu_every_step_is_looked_at() -> None:
    found = Divergence(torch.device("cpu"))
    assert not found.seen(GOOD, look=False)
    assert found.seen(BAD, look=False)


def test_where_one_looks_seldom_a_bad_step_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "is_gpu", lambda device: True)  # on a GPU the host does not wait for the flag
    found = Divergence(torch.device("cpu"))
    assert [found.seen(one, look=False) for one in (GOOD, BAD, GOOD)] == [False] * 3
    assert found.seen(GOOD, look=True)
    assert not Divergence(torch.device("cpu")).seen(GOOD, look=True)


def test_the_error_tells_the_step_the_loss_the_rate_and_what_to_do() -> None:
    text = str(diverged(7, float("inf"), 0.25))
    assert text.startswith("diverged at step 7: the loss is inf, gradients are not finite (learning rate 0.25)")
    for advice in ("learning_rate.base", "warmup_epochs", "lars", "newest checkpoint"):
        assert advice in text
