"""Finds the slices of layers to measure: those of placements that a search names, until all of them are measured.

A slice that was not measured costs as much as the device needs at best. A placement that is the fastest by these costs, and
whose own slices are all measured, is the fastest by measured costs, too: every other one would be slower if it were measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from firetrain.errors import FiretrainError
from firetrain.records.profile import Profile
from firetrain.search.searches import Searched
from firetrain.strategy.placement import Placement
from firetrain.strategy.slice import Slice, slices_of
from firetrain.words import counted

MOST_SEARCHES = 30


def missing(found: Sequence[Searched]) -> list[Slice]:
    """The slices of the placements that searches have named, without those that were measured and those of losses."""
    wanted = {
        share for one in found for placement in one.placements() for share in _working(placement, one.step.images)
    }
    known = found[0].model.measured
    return sorted(wanted - set(known))


def _working(placement: Placement, images: int) -> Iterator[Slice]:
    return (share for share in slices_of(placement, images) if not placement.by_name[share.layer].is_loss)


def measured_lazily(
    profile: Profile,
    searches: Callable[[Profile], list[Searched]],
    measure: Callable[[Profile, list[Slice]], Profile],
    note: Callable[[str], None] = lambda text: None,
) -> Profile:
    """The profile with all slices that its searches need; FiretrainError if there is no end.

    `searches` searches with the costs of a profile, `measure` adds slices to a profile, and `note` is called with a line about
    each search.
    """
    for number in range(MOST_SEARCHES):
        found = searches(profile)
        wanted = missing(found)
        note(f"search {number + 1}: {counted(len(wanted), 'slice')} to measure")
        if not wanted:
            return profile
        profile = measure(profile, wanted)
    raise FiretrainError(
        f"{MOST_SEARCHES} searches have named new slices each; fewer numbers of ranks need fewer slices"
    )
