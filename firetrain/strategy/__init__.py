"""Placements as pure data: which rank computes which share of which layer; made, checked and drawn without torch."""

from firetrain.strategy.catalogue import Strategy, find_strategy
from firetrain.strategy.check import faults
from firetrain.strategy.layer import Layer
from firetrain.strategy.placement import Placement, RegionMessage
from firetrain.strategy.region import Region
from firetrain.strategy.split import Split

__all__ = ["Layer", "RegionMessage", "Placement", "Region", "Split", "Strategy", "faults", "find_strategy"]
