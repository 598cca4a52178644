"""Finds the slices of layers to measure: those of placements that a search names, until all of them are measured.

A slice that was not measured costs as much as the device needs at best. A placement that is the fastest by these costs, and
whose own slices are all measured, is the fastest by measured costs, too: every other one would be slower if it were measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from firetrain.config import Config
from firetrain.errors import FiretrainError
from firetrain.records.profile import MeasureSlices, Profile
from firetrain.search.searches import Searched, searches
from firetrain.strategy.layer import Layer
from firetrain.strategy.placement import Placement
from firetrain.strategy.slice import Slice, slices_of
from firetrain.words import counted

Note = Callable[[str], None]

MOST_SEARCHES = 30


def missing(found: Sequence[Searched]) -> list[Slice]:
    """The slices of the placements that searches have named, without those that were measured and those of losses."""
    wanted = {
        slice_ for one in found for placement in one.placements() for slice_ in _working(placement, one.step.images)
    }
    known = found[0].model.measured
    return sorted(wanted - set(known))


def _working(placement: Placement, images: int) -> Iterator[Slice]:
    return (slice_ for slice_ in slices_of(placement, images) if not placement.by_name[slice_.layer].is_loss)


def slices_for(
    config: Config,
    counts: Sequence[int],
    per_node: int,
    note: Note,
    profile: Profile,
    layers: Sequence[Layer],
    measure: MeasureSlices,
) -> Profile:
    """The profile with all slices that searches for these numbers of ranks need, as in `measured_lazily`."""
    return measured_lazily(
        profile, lambda known: searches(config, known, lambda _: layers, counts, per_node, None), measure, note
    )


def measured_lazily(
    profile: Profile,
    search: Callable[[Profile], list[Searched]],
    measure: MeasureSlices,
    note: Note = lambda text: None,
) -> Profile:
    """The profile with all slices that its searches need; FiretrainError if there is no end.

    `search` searches with the costs of a profile, `measure` adds slices to a profile, and `note` is called with a line about
    each search.
    """
    for number in range(MOST_SEARCHES):
        found = search(profile)
        wanted = missing(found)
        note(f"search {number + 1}: {counted(len(wanted), 'slice')} to measure")
        if not wanted:
            return profile
        profile = measure(profile, wanted)
    raise FiretrainError(
        f"{MOST_SEARCHES} searches have named new slices each; fewer numbers of ranks need fewer slices"
    )
