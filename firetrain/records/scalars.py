"""The values of metrics that other programs show as curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from firetrain.records.parts import EVALUATION, OF_A_STEP

# by kind of metrics line
_SCALARS = {
    "step": ("loss", "learning_rate", "step_s", "images_per_s", *(part.key for part in OF_A_STEP)),
    "evaluation": ("top1", "top5", "loss", EVALUATION.key),
}


def scalars(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """(name, value) of each curve that a line of metrics has a point of.

    >>> dict(scalars({"kind": "evaluation", "step": 10, "top1": 0.5, "top5": 0.9}))
    {'test/top1': 0.5, 'test/top5': 0.9}
    """
    kind = row["kind"]
    for key in _SCALARS.get(kind, ()):
        if isinstance(row.get(key), int | float):
            yield f"{'train' if kind == 'step' else 'test'}/{key}", float(row[key])
