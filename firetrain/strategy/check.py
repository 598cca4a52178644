"""Checks that a placement computes every output once, and that every rank can get what it needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from firetrain.cluster import World
from firetrain.cluster.proof import Proof
from firetrain.config.files import user_path
from firetrain.config.names import is_placement_file
from firetrain.errors import UserError
from firetrain.strategy.layer import Layer
from firetrain.strategy.placement import Placement
from firetrain.strategy.region import Region


def faults(placement: Placement, images: int) -> list[str]:
    """What is wrong with a placement for a batch of `images`; empty if nothing is.

    >>> from firetrain.strategy import Split
    >>> layers = (Layer("fc1", "weights", (), 3, 4, weights=1), Layer("norm", "whole", ("fc1",), 4, 4))
    >>> both = (0, 1)
    >>> faults(Placement("mine", 2, layers, {"fc1": Split(both, outputs=2), "norm": Split(both, outputs=2)}), images=8)
    ['norm needs all channels of an image in one place: only its images can be divided']
    """
    missing = [layer.name for layer in placement.layers if layer.name not in placement.splits]
    if missing:
        return [f"layer {name} is on no rank" for name in missing]
    return [fault for layer in placement.layers for fault in _of_layer(placement, layer, images)]


def refuse_untrainable(placement: Placement, images: int | None = None) -> None:
    """UserError with the first reason why a placement cannot be trained, with batches of `images` if that is known."""
    for reason in untrainable(placement, images):
        raise UserError(f"{placement.strategy}: {reason}")


def untrainable(placement: Placement, images: int | None = None) -> Iterator[str]:
    """The reasons why a placement without faults cannot be trained, with batches of `images` if that is known."""
    if images is not None and placement.micro_batches > images:
        yield f"a batch of {images} images cannot be cut into {placement.micro_batches} micro-batches"
    idle = [
        str(rank)
        for rank in range(placement.ranks)
        if not any(placement.held(layer, rank) for layer in placement.layers)
    ]
    if idle:
        which = f"{'rank' if len(idle) == 1 else 'ranks'} {', '.join(idle)}"
        yield f"{which} would have no weights: use fewer ranks, or give it some (ranks: {placement.ranks})"
    yield from _several_readers(placement.layers)
    losses = [layer for layer in placement.layers if layer.is_loss]
    if len({placement.splits[layer.name] for layer in losses}) > 1:
        yield f"{', '.join(layer.name for layer in losses)} must be divided alike: they have the same labels"


def refuse_several_readers(layers: Sequence[Layer]) -> None:
    """UserError if several layers read the images, so that only data-parallel training can train them."""
    for reason in _several_readers(layers):
        raise UserError(reason)


def _several_readers(layers: Sequence[Layer]) -> Iterator[str]:
    readers = [layer.name for layer in layers if not layer.sources]
    if len(readers) > 1:
        yield f"{', '.join(readers)} read the images: only one layer can; use data-parallel"


def _of_layer(placement: Placement, layer: Layer, images: int) -> Iterator[str]:
    split = placement.splits[layer.name]
    if strangers := sorted(rank for rank in split.ranks if not 0 <= rank < placement.ranks):
        yield f"{layer.name} is on ranks {strangers}, but there are {placement.ranks}"
        return
    if fault := split.fault(layer):
        yield fault
        return
    given = sum(placement.by_name[source].channels for source in layer.sources)
    if layer.sources and given != layer.inputs:
        yield f"{layer.name} has {layer.inputs} input channels, but {', '.join(layer.sources)} make {given}"
    whole = Region(0, images, 0, layer.outputs)
    yield from _times(f"{layer.name}: output", placement.makes(layer, images), whole, split.inputs)
    yield from _times(f"{layer.name}: settled output", placement.settles(layer, images), whole, 1)
    yield from _weights(placement, layer)
    for number, source in enumerate(layer.sources):
        held = placement.holds(placement.by_name[source], images)
        for rank, wanted in enumerate(placement.wants(layer, number, images)):
            if sum((wanted & one).size for one in held) != wanted.size:
                yield f"{layer.name}: rank {rank} needs {wanted.in_words()} of {source}, which are not held exactly once"


def _times(what: str, regions: Sequence[Region], whole: Region, times: int) -> Iterator[str]:
    """Every element of `whole` must lie in exactly `times` regions.

    It is enough that all regions lie inside `whole`, that different regions do not overlap, that each region occurs `times`
    times, and that their sizes add up.
    """
    counts = Counter(region for region in regions if region.size)
    outside = any((region & whole).size != region.size for region in counts)
    total = sum(region.size * count for region, count in counts.items())
    distinct = list(counts)
    overlap = any((one & other).size for number, one in enumerate(distinct) for other in distinct[:number])
    if outside or overlap or total != times * whole.size or any(count != times for count in counts.values()):
        yield f"{what} is not covered exactly {'once' if times == 1 else f'{times} times'}"


def _weights(placement: Placement, layer: Layer) -> Iterator[str]:
    groups = placement.sharers(layer)
    if layer.kind == "weights":
        blocks = [placement.splits[layer.name].block(layer, group[0]) for group in groups]
        shards = [Region(one.first_input, one.end_input, one.first_output, one.end_output) for one in blocks if one]
        yield from _times(f"{layer.name}: matrix of weights", shards, Region(0, layer.inputs, 0, layer.outputs), 1)
    if groups and sum(placement.held(layer, group[0]) for group in groups) != layer.parameters:
        yield f"{layer.name}: the shards of its weights are not the whole"
    if len({len(group) for group in groups}) > 1:
        yield f"{layer.name}: shards of its weights have different numbers of sharers"


def prove(name: str, layers: Sequence[Layer], ranks: int) -> Proof:
    """Check a strategy on every world of 1 to `ranks` ranks on one and on two nodes, for even, uneven and small batches.

    A placement file is checked on its own number of ranks; UserError with its mistakes.
    """
    from firetrain.strategy.catalogue import find_strategy
    from firetrain.strategy.file import ranks_of

    is_file = is_placement_file(name)
    sizes = [ranks_of(user_path(name))] if is_file else range(1, ranks + 1)
    strategy, worlds, refused, reason, wrong = find_strategy(name), 0, 0, "", list[str]()
    for size in sizes:
        for world in {World.even(1, size), World.even(2, size // 2)} if size % 2 == 0 else {World.even(1, size)}:
            try:
                placement = strategy(layers, world)
                refuse_untrainable(placement)
            except UserError as error:
                if is_file:
                    raise
                refused, reason = refused + 1, str(error)
                continue
            found = [
                f"{world}: {fault}"
                for images in (2 * size, 2 * size + 1, size - 1)
                for fault in faults(placement, images)
            ]
            worlds += 1
            wrong += found
    return Proof(worlds, refused, reason, wrong)
