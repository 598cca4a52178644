"""A placement: which rank does what of every layer of a model. It is data, which is checked, drawn, priced and executed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Literal, NamedTuple

from firetrain.strategy.layer import Layer
from firetrain.strategy.region import Region
from firetrain.strategy.split import Split

Schedule = Literal["gpipe", "1f1b"]
Regions = tuple[Region, ...]


class RegionMessage(NamedTuple):
    """What one rank sends to another before a layer: `region` of the channels of `source` (empty: the images).

    >>> message = RegionMessage("fc2", "fc1", sender=0, receiver=1, region=Region(0, 8, 0, 64))
    >>> message.region.size
    512
    """

    layer: str
    source: str
    sender: int
    receiver: int
    region: Region


@dataclass(frozen=True)
class Placement:
    """The layers of a model, in the order in which they are computed, and a split for each.

    - `strategy`: name of the strategy that made it, with its parameters.
    - `ranks`: number of ranks.
    - `micro_batches`, `schedule`: the number into which a batch is cut, and in which order stages compute them.

    >>> layers = (Layer("fc1", "weights", (), 3, 4, weights=1), Layer("fc2", "weights", ("fc1",), 4, 2, weights=1))
    >>> splits = {"fc1": Split((0, 1), images=2), "fc2": Split((0, 1), outputs=2)}
    >>> placement = Placement("mine", 2, layers, splits)
    >>> for message in placement.messages(images=8):
    ...     print(message.sender, "sends", tuple(message.region), "to", message.receiver)
    0 sends (0, 4, 0, 4) to 1
    1 sends (4, 8, 0, 4) to 0
    """

    strategy: str
    ranks: int
    layers: tuple[Layer, ...]
    splits: Mapping[str, Split]
    micro_batches: int = 1
    schedule: Schedule = "gpipe"

    @property
    def is_data_parallel(self) -> bool:
        """Whether every rank computes all layers, each for its share of the images."""
        splits = set(self.splits.values())
        return self.micro_batches == 1 and len(splits) == 1 and splits.pop().images == self.ranks

    @cached_property
    def by_name(self) -> dict[str, Layer]:
        """Each layer by its name in the traced graph, for looking up what a split or a region names."""
        return {layer.name: layer for layer in self.layers}

    def needs(self, layer: Layer, images: int) -> Regions:
        """What each rank needs of the layer's input, for a batch of `images`."""
        split = self.splits[layer.name]
        return self._once(("needs", layer.name, images), lambda rank: split.needs(layer, rank, images))

    def makes(self, layer: Layer, images: int) -> Regions:
        """What each rank computes of the layer's output, perhaps as a partial sum."""
        split = self.splits[layer.name]
        return self._once(("makes", layer.name, images), lambda rank: split.makes(layer, rank, images))

    def settles(self, layer: Layer, images: int) -> Regions:
        """What each rank has of the layer's output after partial sums have been summed."""
        split = self.splits[layer.name]
        return self._once(("settles", layer.name, images), lambda rank: split.settles(layer, rank, images))

    def holds(self, layer: Layer, images: int) -> Regions:
        """What each rank has of the layer's output when the operations that follow it are done."""
        settled = self.settles(layer, images)
        return self._once(("holds", layer.name, images), lambda rank: settled[rank].spread(layer.spread))

    def wants(self, layer: Layer, number: int, images: int) -> Regions:
        """What each rank needs of the layer's source `number`, in that source's channels."""
        sizes = [self.by_name[name].channels for name in layer.sources[: number + 1]]
        first, needed = sum(sizes[:-1]), self.needs(layer, images)
        return self._once(("wants", layer.name, images, number), lambda rank: needed[rank].of(first, first + sizes[-1]))

    @cached_property
    def _known(self) -> dict[tuple[str | int, ...], Regions]:
        return {}

    def _once(self, key: tuple[str | int, ...], region: Callable[[int], Region]) -> Regions:
        """The region of each rank, which is computed once: executors ask in every step."""
        if key not in self._known:
            self._known[key] = tuple(map(region, range(self.ranks)))
        return self._known[key]

    def messages(self, images: int) -> Iterator[RegionMessage]:
        """What travels in the forward pass of a batch of `images`; the backward pass sends the same back.

        An input that several layers need in the same way travels once.
        """
        for layer in self.layers:
            if self.splits[layer.name].inputs > 1:
                yield from _between(layer.name, layer.name, self.makes(layer, images), self.settles(layer, images))
        seen: set[tuple[str, Regions]] = set()
        for layer in self.layers:
            for number, source in enumerate(layer.sources):
                wanted = self.wants(layer, number, images)
                if (source, wanted) not in seen:
                    seen.add((source, wanted))
                    yield from _between(layer.name, source, self.holds(self.by_name[source], images), wanted)

    def stage(self, rank: int) -> tuple[int, int]:
        """(number of this rank's stage, number of stages).

        Layers that follow one another on the same ranks are a stage. If a rank computes in several of them, all layers are one
        stage, because the ranks cannot compute different micro-batches at a time.
        """
        own = next((number for number, ranks in enumerate(self._stages) if rank in ranks), 0)
        return own, len(self._stages)

    @cached_property
    def _stages(self) -> list[frozenset[int]]:
        stages = [ranks for ranks, _ in groupby(frozenset(self.splits[layer.name].ranks) for layer in self.layers)]
        disjoint = sum(map(len, stages)) == len(frozenset().union(*stages))
        return stages if disjoint else [frozenset(range(self.ranks))]

    def sharers(self, layer: Layer) -> list[tuple[int, ...]]:
        """The groups of ranks that hold the same shard of the layer's weights, each once; empty without weights."""
        if not layer.parameters:
            return []
        split = self.splits[layer.name]
        return list(dict.fromkeys(split.sharers(rank) for rank in split.ranks))

    def held(self, layer: Layer, rank: int) -> int:
        """The number of the layer's parameters that a rank holds."""
        block = self.splits[layer.name].block(layer, rank)
        if block is None:
            return 0
        outputs, inputs = block.end_output - block.first_output, block.end_input - block.first_input
        pairs = outputs * inputs if layer.kind == "weights" else 1
        return layer.weights * pairs + (layer.biases * outputs if block.has_bias else 0)


def _between(layer: str, source: str, have: Sequence[Region], need: Sequence[Region]) -> Iterator[RegionMessage]:
    for sender, held in enumerate(have):
        for receiver, wanted in enumerate(need):
            if sender != receiver and (both := held & wanted).size:
                yield RegionMessage(layer, source, sender, receiver, both)
