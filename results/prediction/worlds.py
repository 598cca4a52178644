"""The cases that are measured, and which of them the profile knows nothing of."""

from __future__ import annotations

from typing import Any, NamedTuple

RATE_MBIT = 200
BASE, OTHER, SMALL = "squeezenet-digits", "googlenet-digits", "squeezenet-mini-digits"


class World(NamedTuple):
    """The number of nodes of one rank each, and the rate of their links relative to RATE_MBIT."""

    nodes: int
    factor: float

    def __str__(self) -> str:
        return f"{self.nodes} nodes, {round(RATE_MBIT * self.factor)} Mbit/s"


CALIBRATED = World(4, 1.0)
KNOWN = (World(2, 1.0), CALIBRATED)
HELD_OUT = (World(3, 1.0), World(6, 1.0), World(8, 1.0), World(4, 0.5), World(4, 2.0))
# config, bucket in MiB, world; the first is that of the profile's whole step, the others are held out
TRAINED = (
    (BASE, 2.0, CALIBRATED), *((BASE, 2.0, world) for world in HELD_OUT), (BASE, 0.5, CALIBRATED),
    (OTHER, 2.0, CALIBRATED), (OTHER, 2.0, HELD_OUT[0]), (SMALL, 2.0, CALIBRATED),
)  # fmt: skip


def is_held_out(row: dict[str, Any]) -> bool:
    """Whether the profile contains nothing of this row's case."""
    if "config" in row:
        return (row["config"], row["bucket_mib"], World(row["nodes"], row["factor"])) != TRAINED[0]
    return World(row["nodes"], row["factor"]) in HELD_OUT
