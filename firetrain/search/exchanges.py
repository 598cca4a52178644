"""The time of exchanges of activations between two layers, from the rectangles that travel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firetrain.cluster import World
from firetrain.cluster.shares import share_bounds
from firetrain.predict.network import Network
from firetrain.search.grid import Grid
from firetrain.strategy.layer import Layer
from firetrain.strategy.traffic import FLOAT_BYTES

Bounds = NDArray[np.int64]


class _Load(NamedTuple):
    """The largest numbers of (image, channel) pairs that a rank sends or receives inside its node, and a node to others.

    `messages`: the most that a rank sends or receives.
    """

    inside: int
    between: int
    messages: int


class Exchanges:
    """Exchanges of the activations of a batch of `images` in a world.

    As in the simulation of placements, a message occupies its sender's and its receiver's link: inside a node each rank has one,
    between nodes the ranks of a node share one, and a rank handles at most one message in the network's gap. An exchange takes
    as long as the busiest link or rank, one latency, and `wait_s`, because all wait for the slowest rank. Of several before one
    layer only the first waits; each has a share, which is too little if only some of them move anything.
    """

    def __init__(self, world: World, images: int, network: Network, wait_s: float = 0.0) -> None:
        self._world, self._images, self._network, self._wait_s = world, images, network, wait_s
        nodes = np.array([world.node_of[rank] for rank in world.by_node])
        self._first_of_node = np.flatnonzero(np.concatenate([[True], nodes[1:] != nodes[:-1]]))
        self._inside = nodes[:, None] == nodes[None, :]
        self._loads: dict[tuple[object, ...], _Load] = {}

    def ns(self, source: Layer, have: Grid, layer: Layer, need: Grid, first: int) -> int:
        """Nanoseconds to bring the output of `source` to `layer`; of the wait, the share of one of the layer's sources.

        `have`, `need`: their grids. `first`: the number of the source's first channel among the layer's inputs.
        """
        whole = layer.kind != "channels" or need.outputs == 1
        key = (source.outputs, source.spread, have, need, None if whole else (layer.inputs, first))
        if key not in self._loads:
            self._loads[key] = self._load(source, have, layer, need, first, whole=whole)
        load, element_bytes = self._loads[key], source.output_elements * FLOAT_BYTES
        seconds = 0.0
        for pairs, link in ((load.inside, self._network.inside), (load.between, self._network.between)):
            if pairs:
                busy_s = max(pairs * element_bytes * float(link.s_per_byte), load.messages * float(self._network.gap_s))
                seconds = max(seconds, float(link.latency_s) + busy_s)
        return round(1e9 * (seconds + self._wait_s / max(1, len(layer.sources)))) if seconds else 0

    def _load(self, source: Layer, have: Grid, layer: Layer, need: Grid, first: int, *, whole: bool) -> _Load:
        channels = source.channels
        held = source.spread * _bounds(source.outputs, have.outputs)
        wanted = np.array([[0, channels]]) if whole else _bounds(layer.inputs, need.outputs) - first
        of_images = _common(_bounds(self._images, have.images), _bounds(self._images, need.images))
        of_channels = _common(held, np.clip(wanted, 0, channels))
        if whole:
            of_channels = np.repeat(of_channels, need.outputs, axis=1)
        # rank i * outputs + o has share i of the images and o of the outputs
        pairs = np.kron(of_images, of_channels)
        np.fill_diagonal(pairs, 0)
        inside = np.where(self._inside, pairs, 0)
        between = np.add.reduceat(np.add.reduceat(pairs - inside, self._first_of_node, 0), self._first_of_node, 1)
        return _Load(*(int(max(one.sum(axis=0).max(), one.sum(axis=1).max())) for one in (inside, between, pairs > 0)))


def _bounds(count: int, shares: int) -> Bounds:
    """First and end of each share, int64 [shares, 2]."""
    return np.array([share_bounds(count, number, shares) for number in range(shares)], np.int64)


def _common(these: Bounds, those: Bounds) -> Bounds:
    """The overlap of every pair of intervals, int64 [these, those]."""
    first = np.maximum(these[:, None, 0], those[None, :, 0])
    common: Bounds = np.maximum(0, np.minimum(these[:, None, 1], those[None, :, 1]) - first)
    return common


def firsts(layer: Layer, sources: Sequence[Layer]) -> list[int]:
    """The number of the first channel of each source among the inputs of a layer."""
    found, first = [], 0
    for source in sources:
        found.append(first)
        first += source.channels
    assert first == layer.inputs, f"{layer.name} has {layer.inputs} inputs, and its sources {first} channels"
    return found
