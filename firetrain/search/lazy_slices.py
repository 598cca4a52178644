"""Finds the slices of layers to measure: those of placements that a search names, until all of them are measured.

A slice that was not measured costs as much as the device needs at best. A placement that is the fastest by these costs, and
whose own slices are all measured, is the fastest by measured costs, too, unless a slice turns out faster than that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from firetrain.cluster import World
from firetrain.config import Config
from firetrain.errors import FiretrainError
from firetrain.predict.question import WhatIf
from firetrain.predict.work import MeasuredWork
from firetrain.records.measured_slice import Ceilings
from firetrain.records.profile import MeasureSlices, Profile
from firetrain.search.model import SearchModel
from firetrain.search.searches import Searched, searches
from firetrain.strategy.layer import Layer
from firetrain.strategy.slice import Slice
from firetrain.words import counted

Note = Callable[[str], None]

MOST_SEARCHES = 30


def missing(found: Sequence[Searched]) -> list[Slice]:
    """The slices of the placements that searches have named, without those that were measured and those of losses."""
    return sorted({part for one in found for part in one.unmeasured()})


def faster_than_allowed(model: SearchModel, ceilings: Ceilings | None) -> list[Slice]:
    """The measured slices that took less time than the device is said to need at best."""
    if ceilings is None:
        return []
    least, layers = MeasuredWork({}, ceilings), {layer.name: layer for layer in model.layers}
    return [
        part
        for part, seconds in model.measured.items()
        if part.layer in layers and sum(seconds) < sum(least.seconds(layers[part.layer], part))
    ]


def slices_for(
    config: Config,
    worlds: Sequence[World],
    what_if: WhatIf,
    note: Note,
    profile: Profile,
    layers: Sequence[Layer],
    measure: MeasureSlices,
) -> Profile:
    """The profile with all slices that searches for these worlds need, as in `measured_lazily`."""
    return measured_lazily(
        profile, lambda known: searches(config, known, lambda _: layers, worlds, what_if=what_if), measure, note
    )


def measured_lazily(
    profile: Profile,
    search: Callable[[Profile], list[Searched]],
    measure: MeasureSlices,
    note: Note = lambda text: None,
) -> Profile:
    """The profile with all slices that its searches need; FiretrainError if there is no end.

    `search` searches with the costs of a profile, `measure` adds slices to a profile, and `note` is called with a line about
    each search, and about slices that took less time than the device needs at best.
    """
    for number in range(MOST_SEARCHES):
        found = search(profile)
        wanted = missing(found)
        note(f"search {number + 1}: {counted(len(wanted), 'slice')} to measure")
        if not wanted:
            if faster := faster_than_allowed(found[0].model, profile.ceilings):
                note(
                    f"{counted(len(faster), 'slice')}, of {faster[0].layer} for instance, took less time than the profile's "
                    "ceilings allow: a placement that was not measured may be faster than what was found"
                )
            return profile
        profile = measure(profile, wanted)
    raise FiretrainError(
        f"{MOST_SEARCHES} searches have named new slices each; fewer numbers of ranks need fewer slices"
    )
