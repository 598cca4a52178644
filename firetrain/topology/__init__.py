"""Reduction plans as pure data, which are made, checked and drawn without torch."""

from firetrain.cluster.proof import Proof
from firetrain.topology.catalogue import Topology, find_topology
from firetrain.topology.check import faults, prove
from firetrain.topology.plan import Claim, Plan, Transfer

__all__ = ["Claim", "Plan", "Proof", "Topology", "Transfer", "faults", "find_topology", "prove"]
