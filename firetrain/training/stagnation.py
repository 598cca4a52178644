"""A warning if the model has made no progress in an epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence

# relative distance to the loss of guessing within which an epoch's mean loss counts as no progress
_TOLERANCE = 0.005


class Stagnation:
    """Compares the losses of an epoch with ln(classes), the loss of guessing."""

    def __init__(self, classes: int) -> None:
        self._classes, self._warned = classes, False

    def warning(self, epoch: int, losses: Sequence[float]) -> str | None:
        """The warning after `epoch` (from 0); None if there was progress, or if the warning was already given."""
        chance = math.log(self._classes)
        near = bool(losses) and abs(sum(losses) / len(losses) / chance - 1.0) <= _TOLERANCE
        if self._warned or not near:
            return None
        self._warned = True
        return (
            f"no progress in epoch {epoch + 1}: its loss stays at ln({self._classes}) = {chance:.4f}, the loss of guessing "
            f"(within {_TOLERANCE:.1%}). Likely causes: the learning rate is too large for the first steps (set warmup_epochs: "
            "1) or too small; small models without batch norm fail for some seeds (try another seed, or model.batch_norm: true)"
        )
