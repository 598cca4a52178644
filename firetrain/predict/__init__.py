"""Predict training on many ranks from measurements on a few, on a login node, without torch."""

from firetrain.predict.network import LinkCost, Network
from firetrain.predict.price import price

__all__ = ["LinkCost", "Network", "price"]
