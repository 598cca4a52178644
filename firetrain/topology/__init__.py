"""Reduction plans as pure data: made, checked and drawn without torch."""

from firetrain.topology.catalogue import Topology, find_topology, installed
from firetrain.topology.plan import Claim, Plan, Transfer

__all__ = ["Claim", "Plan", "Topology", "Transfer", "find_topology", "installed"]
