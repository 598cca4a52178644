"""A step of data-parallel training: predicted from when its gradients arrived, and from its layers in a search."""

from __future__ import annotations

import pytest
from test_search import MIB, layers_of, profile_of

from firetrain.cluster import World
from firetrain.predict.costs import Costs
from firetrain.predict.predictor import Predictor
from firetrain.predict.question import Question, WhatIf
from firetrain.records.measured_slice import Ceilings, MeasuredSlice
from firetrain.records.profile import Profile
from firetrain.search.model import SearchModel, Step
from firetrain.search.step_simulator import StepSimulator
from firetrain.strategy import Layer, find_strategy
from firetrain.strategy.slice import Slice

RANKS, IMAGES = 8, 256


@pytest.mark.parametrize("name", ["alexnet", "googlenet_paper"])
@pytest.mark.parametrize(
    ("machine_of", "sliced", "overlap"),
    [
        ({"residual_s": 0.01}, False, True),
        ({"jitter": 0.05}, False, True),
        ({"stolen": 0.2, "residual_s": 0.01}, True, True),
        ({}, False, False),
    ],
)
@pytest.mark.parametrize("bytes_per_s", [3e8, 3e9])
def test_a_search_and_a_prediction_agree_within_three_percent(
    name: str, machine_of: dict[str, float], sliced: bool, overlap: bool, bytes_per_s: float
) -> None:
    layers, world = layers_of(name), World.even(RANKS // 4, 4)
    profile = with_arrivals(profile_of(layers, between_bytes_per_s=bytes_per_s, **machine_of), layers)
    profile = (with_slices(profile, layers) if sliced else profile).model_copy(update={"overlap": overlap})
    predicted_s = Predictor(profile, Question("m", [RANKS], ["ring"], 4, IMAGES, bucket_bytes=8 * MIB)).rows()[0].step_s
    model = SearchModel(layers, world, Costs(profile, "m", WhatIf()))
    problem = model.problem(Step(IMAGES, "ring", 8 * MIB))
    choice = model.choice(problem, find_strategy("data-parallel")(layers, world))
    assert choice is not None
    assert StepSimulator(problem).step_ns(choice) / 1e9 == pytest.approx(predicted_s, rel=0.03)


def with_arrivals(profile: Profile, layers: tuple[Layer, ...]) -> Profile:
    """The profile with the gradients of each layer as soon as its backward pass has ended."""
    work, ended_s, ready = Costs(profile, "m", WhatIf()).work(layers), 0.0, []
    for layer in reversed(layers):
        ended_s += work.seconds(layer, whole(layer, IMAGES))[1]
        ready += [(4 * layer.parameters, ended_s)] if layer.parameters else []
    (step,) = profile.steps
    shares = tuple((size, ready_s / ended_s) for size, ready_s in ready)
    return profile.model_copy(update={"steps": (step.model_copy(update={"ready": shares}),)})


def with_slices(profile: Profile, layers: tuple[Layer, ...]) -> Profile:
    """The profile with measured slices of all layers, for two numbers of images."""
    work = Costs(profile, "m", WhatIf()).work(layers)
    slices = []
    for layer in layers:
        for images in (IMAGES // RANKS, IMAGES):
            part = whole(layer, images)
            forward_s, backward_s = work.seconds(layer, part)
            slices.append(MeasuredSlice(model="m", **part._asdict(), forward_s=forward_s, backward_s=backward_s))
    ceilings = Ceilings(operations_per_s=1e15, bytes_per_s=1e15)
    return profile.with_ceilings(ceilings, profile.stolen[0]).with_slices(slices)


def whole(layer: Layer, images: int) -> Slice:
    """All of a layer, for some images."""
    return Slice(layer.name, images, layer.outputs, layer.inputs)
