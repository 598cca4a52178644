"""The bytes that a step sends: counted by the machine's network interfaces, and predicted from data alone."""

from __future__ import annotations

from pathlib import Path

from firetrain.cluster import World
from firetrain.config.names import TOPOLOGIES, installed_names
from firetrain.config.spec import Spec
from firetrain.strategy.placement import Placement
from firetrain.strategy.traffic import FLOAT_BYTES, traffic
from firetrain.topology import find_topology

_COUNTERS = Path("/proc/self/net/dev")
_SENT = 8  # the column of bytes sent


def sent_bytes() -> int:
    """The bytes that this machine's interfaces have sent since it started, without the loopback; 0 if they are not counted."""
    if not _COUNTERS.exists():
        return 0
    lines = (line.partition(":") for line in _COUNTERS.read_text().splitlines()[2:])
    return sum(int(counts.split()[_SENT]) for name, _, counts in lines if name.strip() != "lo")


def expected_bytes(
    placement: Placement,
    world: World,
    images: int,
    reduction: str,
    wire_bytes: int = FLOAT_BYTES,
    elsewhere: int = 0,
) -> list[int] | None:
    """The bytes that each rank sends in a step: activations, their gradients, and the plans that sum gradients.

    None if the reduction has no plan (native, auto). Packets' headers and labels are not counted. `wire_bytes`: of a gradient.
    `elsewhere`: parameters of the model that are in no layer of the placement; all ranks sum their gradients.
    """
    if Spec.parse(reduction).name not in installed_names(TOPOLOGIES):
        return None
    found = traffic(placement, images)
    sent = list(found.sent)
    reduced = [*found.reduced.items()]
    reduced += [(tuple(range(world.size)), elsewhere * FLOAT_BYTES)] if elsewhere else []
    for group, size_bytes in reduced:
        plan = find_topology(reduction)(World.from_labels([world.node_of[rank] for rank in group]))
        for rank, count in zip(group, plan.bytes_sent(size_bytes * wire_bytes // FLOAT_BYTES), strict=True):
            sent[rank] += count
    return sent
