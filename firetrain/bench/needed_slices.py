"""Measures the slices of layers that searches for placements need, on all ranks at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from firetrain.bench.slices import Slices
from firetrain.config import Config
from firetrain.config.label import model_label
from firetrain.predict.work import PassSeconds
from firetrain.records.measured_slice import MeasuredSlice
from firetrain.records.profile import MeasureSlices, Profile
from firetrain.strategy.layer import Layer
from firetrain.strategy.slice import Slice
from firetrain.transport.transport import Transport


def with_needed_slices(
    profile: Profile,
    config: Config,
    transport: Transport,
    repeats: int,
    find: Callable[[Profile, Sequence[Layer], MeasureSlices], Profile],
    keep: Callable[[Profile], object] = lambda profile: None,
) -> Profile:
    """On rank 0, what `find` makes of the profile; on other ranks the profile as it was. Collective.

    What a rank can do at best, and what communication takes from compute, are measured unless the profile has them for the model,
    from at least as many ranks. `find` searches, on rank 0, for placements of the layers, and calls the function that it is given
    to measure slices, as often as it needs. `repeats`: timings of each slice. `keep` is called with the profile after every
    measurement, so that nothing is lost if a search fails.
    """
    timed, label = Slices.of(config, transport, repeats), model_label(config.model, config.data)
    is_known = profile.ceilings is not None and any(
        one.model == label and one.ranks >= transport.size for one in profile.stolen
    )
    found = () if transport.broadcast_object(is_known) else (timed.ceilings(), timed.stolen(label))

    def measure(known: Profile, wanted: list[Slice]) -> Profile:
        _from_first(transport, wanted)
        found = known.with_slices(measured_slices(label, wanted, timed.seconds(wanted)))
        keep(found)
        return found

    if transport.rank == 0:
        profile = find(profile.with_ceilings(*found) if found else profile, timed.graph.layers, measure)
        _from_first(transport, [])
    else:
        while wanted := _from_first(transport, []):
            timed.seconds(wanted)
    return profile


def _from_first(transport: Transport, wanted: list[Slice]) -> list[Slice]:
    """The slices that rank 0 wants measured; none at the end."""
    return [Slice(*one) for one in transport.broadcast_object([tuple(one) for one in wanted])]


def measured_slices(model: str, timed: Sequence[Slice], seconds: Sequence[PassSeconds]) -> list[MeasuredSlice]:
    """Timed slices as the records of a profile."""
    return [
        MeasuredSlice(model=model, **one._asdict(), forward_s=forward_s, backward_s=backward_s)
        for one, (forward_s, backward_s) in zip(timed, seconds, strict=True)
    ]
