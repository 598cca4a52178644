"""A run without progress in an epoch gives one warning, and a run with progress gives none."""

from __future__ import annotations

import math

import pytest

from firetrain.training.stagnation import Stagnation


def test_an_epoch_at_the_loss_of_guessing_is_told_once_with_its_number() -> None:
    stagnation, chance = Stagnation(10), math.log(10)
    first = stagnation.warning(2, [chance, chance * 1.004, chance * 0.997])
    assert first is not None and first.startswith(
        "no progress in epoch 3: its loss stays at ln(10) = 2.3026, the loss of guessing (within 0.5%)"
    )
    assert "warmup_epochs" in first and "model.batch_norm" in first
    assert stagnation.warning(3, [chance]) is None


@pytest.mark.parametrize("losses", [[2.0], [2.25, 2.28], [], [2.4, 2.5], [math.nan], [math.inf]])
def test_an_epoch_that_moves_or_was_not_logged_is_not_told(losses: list[float]) -> None:
    assert Stagnation(10).warning(0, losses) is None


def test_it_depends_on_the_number_of_classes() -> None:
    assert Stagnation(2).warning(0, [math.log(2)]) is not None
    assert Stagnation(1000).warning(0, [math.log(2)]) is None
