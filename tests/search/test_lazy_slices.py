"""Slices are measured only where a search needs them, and what is found is as fast as if all had been measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from firetrain.bench.needed_slices import measured_slices
from firetrain.cluster import World
from firetrain.config import load_config
from firetrain.errors import FiretrainError, UserError
from firetrain.models.catalogue import model_by_name
from firetrain.models.graph import trace
from firetrain.predict.costs import Costs
from firetrain.predict.question import WhatIf
from firetrain.predict.work import MeasuredWork
from firetrain.records.measured_slice import Ceilings, Stolen
from firetrain.records.profile import Profile
from firetrain.search.lazy_slices import measured_lazily
from firetrain.search.model import SearchModel, Step, largest_slice
from firetrain.search.searches import Searched, searches
from firetrain.search.table import remarks
from firetrain.strategy import faults
from firetrain.strategy.slice import Slice

RANKS = 8
LABEL = "alexnet+small@32"
CONFIG = load_config(
    "squeezenet-digits", ["model.name=alexnet", "batch.global_size=64", "reduction.name=ring", "data.image_size=32"]
).config
LAYERS = trace(model_by_name("alexnet", classes=10, stem="small"), 32).layers
BY_NAME = {layer.name: layer for layer in LAYERS}
CEILINGS = Ceilings(operations_per_s=2e11, bytes_per_s=2e10)


def profile() -> Profile:
    """Assumed links, and a step of this model."""
    assumed = Profile.find("uncalibrated")
    step = assumed.steps[0].model_copy(update={"model": LABEL, "batch_per_rank": 8})
    return assumed.model_copy(update={"steps": (step,)})


def search(known: Profile) -> list[Searched]:
    return searches(CONFIG, known, lambda _: LAYERS, [World.even(RANKS, 1)])


def truth(part: Slice) -> tuple[float, float]:
    """What a slice takes: longer than the device needs at best, by a factor of its own."""
    draw = np.random.default_rng([*part.layer.encode(), part.images, part.outputs])
    forward_s, backward_s = MeasuredWork({}, CEILINGS).seconds(BY_NAME[part.layer], part)
    return forward_s * draw.uniform(1, 1.5), backward_s * draw.uniform(1, 1.5)


def measure(known: Profile, wanted: list[Slice]) -> Profile:
    measured.extend(wanted)
    return known.with_slices(measured_slices(LABEL, wanted, list(map(truth, wanted))))


measured: list[Slice] = []


def test_few_slices_are_measured_and_nothing_would_be_faster_if_all_were(tmp_path: Path) -> None:
    measured.clear()
    lazily = measured_lazily(profile().with_ceilings(CEILINGS, Stolen(model=LABEL, share=0.2)), search, measure)
    (found,) = search(lazily)
    model = found.model
    splits = [grid.split(model.world) for grid in model.grids]
    every = sorted(
        {
            largest_slice(layer, split, 64)
            for layer in LAYERS
            for split in splits
            if not layer.is_loss and not split.fault(layer)
        }
    )
    assert len(measured) == len(set(measured)) == len(lazily.slices), "nothing is measured twice"
    assert len(set(measured) & set(every)) < len(every), "others are slices of pipelines"
    (wholly,) = search(measure(lazily, every))
    assert wholly.found.step_ns == found.found.step_ns and wholly.found.is_proven and found.found.is_proven
    lazily.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == lazily
    assert search(Profile.load(tmp_path / "profile.json"))[0].found.choice == found.found.choice
    assert found.as_json()["unmeasured_slices"] == 0 and "not measured" not in "".join(remarks(found))
    (many,) = searches(CONFIG, lazily, lambda _: LAYERS, [World.even(2 * RANKS, 1)])
    told = (
        f"{many.as_json()['unmeasured_slices']} slices of these placements were not measured, and count with the least"
    )
    assert told in "".join(remarks(many)) and many.unmeasured()


def test_a_calibration_that_measures_nothing_ends() -> None:
    lines: list[str] = []
    with pytest.raises(FiretrainError, match="30 searches have named new slices each"):
        measured_lazily(profile(), search, lambda known, wanted: known, lines.append)
    assert len(lines) == 30 and lines[-1].startswith("search 30: ") and lines[-1].endswith(" slices to measure")


def test_a_slice_that_is_measured_again_replaces_the_first_measurement() -> None:
    part = Slice("features.0", 8, 64, 3)
    twice = profile()
    for forward_s in (1e-3, 2e-3):
        twice = twice.with_slices(measured_slices(LABEL, [part], [(forward_s, 3e-3)]))
    (only,) = twice.slices
    assert only.forward_s == pytest.approx(2e-3)


@pytest.mark.parametrize(("faster_by", "is_told"), [(1.0, False), (0.5, True)])
def test_slices_that_are_faster_than_the_ceilings_are_told(faster_by: float, *, is_told: bool) -> None:
    """The search takes the ceilings as lower bounds. If they are none, what it has not measured may be faster."""
    lines: list[str] = []
    known = profile().with_ceilings(CEILINGS, Stolen(model=LABEL, share=0.2))

    def measure_faster(known: Profile, wanted: list[Slice]) -> Profile:
        seconds = [(faster_by * forward_s, faster_by * backward_s) for forward_s, backward_s in map(truth, wanted)]
        return known.with_slices(measured_slices(LABEL, wanted, seconds))

    measured_lazily(known, search, measure_faster, lines.append)
    assert any("took less time than the profile's ceilings allow" in line for line in lines) == is_told


def test_a_slower_network_changes_what_is_found() -> None:
    worlds = [World.even(RANKS, 1)]
    (same,) = searches(CONFIG, profile(), lambda _: LAYERS, worlds, what_if=WhatIf())
    (slower,) = searches(CONFIG, profile(), lambda _: LAYERS, worlds, what_if=WhatIf(bandwidth=0.01))
    assert same.step_ns == search(profile())[0].step_ns < slower.step_ns
    by_images = [
        sum(grid.images for grid in one.found.problem.grids_in(one.found.choice).values()) for one in (same, slower)
    ]
    assert by_images[1] < by_images[0], "fewer gradients are summed"


def test_ranks_that_do_not_fill_their_nodes_evenly_are_searched_as_they_are() -> None:
    world = World((0, 1, 0, 1, 1))
    (found,) = searches(CONFIG, profile(), lambda _: LAYERS, [world])
    assert found.world == world and found.found.is_proven
    assert faults(found.placement(), 64) == []


def test_the_slowest_group_of_ranks_that_sum_together_counts() -> None:
    """Of four ranks on two nodes, grid 2 x 2 sums between the ranks {0, 2} and {1, 3}: only the second pair is on two nodes."""
    step, costs = Step(64, "ring", 8 << 20), Costs(profile(), LABEL, WhatIf())
    inside, uneven, apart = (
        SearchModel(LAYERS, World(nodes), costs).problem(step).sums(2, 1 << 20)
        for nodes in ((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 1))
    )
    assert inside < uneven <= apart


def test_no_rank_reads_more_images_at_once_than_it_may() -> None:
    def found(most: int | None) -> Searched:
        batch = CONFIG.batch.model_copy(update={"per_rank_max": most})
        return searches(
            CONFIG.model_copy(update={"batch": batch}), profile(), lambda _: LAYERS, [World.even(RANKS, 1)]
        )[0]

    free, limited = found(None), found(8)
    problem = limited.found.problem
    assert [problem.grids[number].images for number in problem.allowed[problem.variables[0]]] == [RANKS]
    assert len(free.found.problem.allowed[0]) > 1 and free.step_ns <= limited.step_ns
    with pytest.raises(UserError, match="set batch.per_rank_max to null"):
        found(7)
