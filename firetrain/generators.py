"""The generators of random numbers that a user's own code may draw from: those of torch, numpy and Python."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_generators(seed: int) -> None:
    """Seed all of them."""
    torch.manual_seed(seed)
    np.random.seed(seed % (1 << 32))
    random.seed(seed)


def states_of_generators() -> tuple[Any, Any, Any]:
    """Their states."""
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def restore_generators(states: tuple[Any, Any, Any]) -> None:
    """Go back to these states."""
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Context manager: what is drawn inside follows from `seed`, and changes nothing of what is drawn afterwards."""
    before = states_of_generators()
    seed_generators(seed)
    try:
        yield
    finally:
        restore_generators(before)
