"""Ranks and nodes, who this process is among them, and clocks."""

from firetrain.cluster.clock import Clock, SystemClock
from firetrain.cluster.identity import Identity, identify
from firetrain.cluster.world import World

__all__ = ["Clock", "Identity", "SystemClock", "World", "identify"]
