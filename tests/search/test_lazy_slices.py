"""Slices are measured only where a search needs them, and what is found is as fast as if all had been measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from firetrain.bench.needed_slices import measured_slices
from firetrain.config import load_config
from firetrain.errors import FiretrainError
from firetrain.models.catalogue import model_by_name
from firetrain.models.graph import trace
from firetrain.predict.work import MeasuredWork
from firetrain.records.measured_slice import Ceilings, Stolen
from firetrain.records.profile import Profile
from firetrain.search.lazy_slices import measured_lazily
from firetrain.search.model import largest_slice
from firetrain.search.searches import Searched, searches
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
    return searches(CONFIG, known, lambda _: LAYERS, [RANKS], 1, None)


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
