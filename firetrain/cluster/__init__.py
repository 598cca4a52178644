"""Ranks and nodes, the identity of this process among them, links between them, and clocks."""

from firetrain.cluster.clock import Clock, SystemClock, duration
from firetrain.cluster.identity import Identity, identify
from firetrain.cluster.link import Link
from firetrain.cluster.world import World

__all__ = ["Clock", "Identity", "Link", "SystemClock", "World", "duration", "identify"]
