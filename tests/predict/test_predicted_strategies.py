"""Steps under strategies, predicted from a profile."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from command import Command
from profiled import LAYERS, profile, question
from recorded import record

from firetrain.cluster import World
from firetrain.config import Config, load_config
from firetrain.config.label import model_label
from firetrain.predict.check import check_runs, history, keep, method_of_line
from firetrain.predict.costs import DRAWS, Costs, first_of
from firetrain.predict.prediction import Prediction
from firetrain.predict.predictor import Predictor
from firetrain.predict.question import WhatIf
from firetrain.records.measured_slice import Ceilings, MeasuredSlice, Stolen
from firetrain.records.parts import COMPUTE, SLOWEST
from firetrain.records.profile import MeasuredStep, Quantity
from firetrain.report.prediction import remarks
from firetrain.search.grid import Grid
from firetrain.search.model import SearchModel, Step
from firetrain.strategy import Layer, find_strategy
from firetrain.strategy.slice import Slice, slices_of


def test_a_profile_with_slices_predicts_strategies_from_them() -> None:
    """Three times the time for everything that one rank computes alone is three times the compute of a step."""
    asked = question(layers=LAYERS, strategies=("one-weird-trick",), counts=[2], per_node=1, global_batch=16)
    known = profile(ceilings=Ceilings(operations_per_s=1e15, bytes_per_s=1e15))
    parts = slices_of(find_strategy("one-weird-trick")(LAYERS, World.even(2, 1)), 16)

    def compute_s(factor: float) -> float:
        slices = [
            MeasuredSlice(model="m@32", **part._asdict(), forward_s=factor * 1e-3, backward_s=factor * 2e-3)
            for part in parts
            if part.layer != "loss"
        ]
        row = Predictor(known.with_slices(slices), asked).rows()[0]
        return row.parts["compute"]

    assert compute_s(1) == pytest.approx(3 * 3e-3) and compute_s(3) == pytest.approx(3 * 3 * 3e-3)


def test_a_whole_model_s_passes_are_those_of_the_step_measured_with_as_many_images() -> None:
    """Also if they lie beside the line through all steps; half of the compute doubles them."""

    def step(images: int, passes_s: float) -> MeasuredStep:
        changes = {
            "batch_per_rank": images,
            "forward_s": Quantity(value=passes_s / 4),
            "backward_s": Quantity(value=0.75 * passes_s),
        }
        return profile().steps[0].model_copy(update=changes)

    steps = [step(8, 16e-3), step(16, 16e-3), step(32, 32e-3)]
    slices = [
        MeasuredSlice(model="m@32", **part._asdict(), forward_s=1e-3, backward_s=2e-3)
        for images in (8, 16)
        for part in slices_of(find_strategy("data-parallel")(LAYERS, World.even(1, 1)), images)
        if part.layer != "loss"
    ]
    known = profile(
        steps=tuple(steps), slices=tuple(slices), ceilings=Ceilings(operations_per_s=1e15, bytes_per_s=1e15)
    )
    for compute in (1.0, 0.5):
        work = Costs(known, "m@32", WhatIf(compute=compute)).work(LAYERS)
        for images in (8, 16):
            placement = find_strategy("data-parallel")(LAYERS, World.even(1, 1))
            parts = {one.layer: one for one in slices_of(placement, images)}
            passes = [work.seconds(layer, parts[layer.name]) for layer in LAYERS if not layer.is_loss]
            assert sum(map(sum, passes)) == pytest.approx(16e-3 / compute)


def test_the_slowest_rank_is_charged_where_the_whole_model_s_time_has_replaced_that_of_slices() -> None:
    """Measured slices are those of the slowest rank, a measured step is not."""
    asked = question(layers=LAYERS, strategies=("one-weird-trick",), counts=[2], per_node=1, global_batch=16)
    world = World.even(2, 1)
    # those of data-parallel training are all layers, with the 8 images of a rank
    whole, parts = (slices_of(find_strategy(name)(LAYERS, world), 16) for name in ("data-parallel", "one-weird-trick"))
    known = profile(ceilings=Ceilings(operations_per_s=1e15, bytes_per_s=1e15))
    later = first_of(Costs(known, "m@32", WhatIf()).slowest_s(np.ones(DRAWS + 1), 2))
    assert later > 0.005
    for measured, expected in ((whole | parts, later), (parts, 0.0)):
        slices = [
            MeasuredSlice(model="m@32", **part._asdict(), forward_s=1e-3, backward_s=2e-3)
            for part in measured
            if part.layer != "loss"
        ]
        predictor = Predictor(known.with_slices(slices), asked)
        parts_s = predictor.rows()[0].parts
        assert not predictor.notes
        assert parts_s[SLOWEST.name] == pytest.approx(expected * parts_s[COMPUTE.name])
        costs = Costs(known.with_slices(slices), "m@32", WhatIf())
        problem = SearchModel(LAYERS, world, costs).problem(Step(16, "ring", 1 << 20))
        alone_s = costs.work(LAYERS).seconds(LAYERS[0], Slice("conv", 8, 8, 3))[0]
        found_ns = problem.forward_ns[0, problem.grids.index(Grid(2, 1))]
        assert found_ns == pytest.approx(1e9 * alone_s * (1 + expected), abs=1)


def test_a_strategy_whose_slices_were_not_measured_is_told_to_be_a_lower_bound() -> None:
    measured = slices_of(find_strategy("data-parallel")(LAYERS, World.even(2, 1)), 16)
    slices = [MeasuredSlice(model="m@32", **part._asdict(), forward_s=1e-3, backward_s=2e-3) for part in measured]
    known = profile(ceilings=Ceilings(operations_per_s=1e15, bytes_per_s=1e15)).with_slices(slices)
    methods = {"strategies": ("data-parallel", "one-weird-trick"), "reductions": ["ring"]}
    asked = question(layers=LAYERS, counts=[2], per_node=1, global_batch=16, **methods)
    predictor = Predictor(known, asked)
    assert len(predictor.rows()) == 2 and len(predictor.notes) == 1
    assert re.match(r"one-weird-trick on 2 ranks is a lower bound: 2 slices of layers were not", predictor.notes[0])


def test_what_communication_takes_from_compute_grows_with_the_link_and_shrinks_with_the_processor() -> None:
    known = profile(stolen=(Stolen(model="m@32", share=0.2, exchange_wait_s=1e-3),))
    changes = (WhatIf(), WhatIf(bandwidth=0.1), WhatIf(compute=0.5), WhatIf(bandwidth=100.0))
    found = [Costs(known, "m@32", one) for one in changes]
    assert [one.stolen(nodes=2) for one in found] == pytest.approx([0.2, 0.02, 0.4, 1.0])
    assert [one.stolen(nodes=1) for one in found] == pytest.approx([0.2, 0.2, 0.4, 0.2]), "links between nodes"
    assert [one.exchange_wait_s(4) for one in found] == pytest.approx([1e-3, 1e-3, 2e-3, 1e-3])


def test_more_ranks_wait_longer_for_the_slowest() -> None:
    """The expected largest of 2, 4 and 8 standard normal numbers is 0.56, 1.03 and 1.42 (Blom 1958: within 0.05)."""
    known = profile(stolen=(Stolen(model="m@32", share=0.2, exchange_wait_s=1e-3, ranks=4),))
    costs = Costs(known, "m@32", WhatIf())
    waits_s = [costs.exchange_wait_s(ranks) for ranks in (1, 2, 4, 8)]
    assert waits_s == pytest.approx([0.0, 0.56e-3 / 1.03, 1e-3, 1.42e-3 / 1.03], rel=0.06)


def test_parts_of_a_predicted_step_sum_to_it_and_strategies_are_ranked_beside_reductions() -> None:
    strategies = ("data-parallel", "one-weird-trick", "pipeline:stages=2,micro_batches=2")
    asked = question(counts=[1, 2, 4], strategies=strategies, reductions=["ring", "tree"], layers=LAYERS, per_node=1)
    predictor = Predictor(profile(), asked)
    rows = predictor.rows()
    assert [(row.strategy, row.reduction) for row in rows if row.ranks == 4] == [
        (s, r) for s in strategies for r in ("ring", "tree")
    ]
    for row in rows:
        assert sum(row.parts.values()) == pytest.approx(row.step_s) and row.low_s <= row.step_s <= row.high_s
        has = {key for key in ("exchange of activations", "pipeline bubble") if row.parts.get(key)}
        wanted = {"one-weird-trick": {"exchange of activations"}, strategies[2]: {"pipeline bubble"}}
        assert has == wanted.get(row.strategy, set())
    assert not predictor.notes and all(
        sum(row.is_recommended for row in rows if row.ranks == count) == 1 for count in (2, 4)
    )


def test_a_recommendation_that_changes_twice_is_told_in_one_sentence() -> None:
    asked = question(counts=[2, 4, 8], reductions=["ring"], layers=LAYERS, per_node=1)
    predictor = Predictor(profile(), asked)
    chosen = {2: ("one-weird-trick", "ring"), 4: ("data-parallel", "ring"), 8: ("data-parallel", "tree")}
    rows = [
        replace(row, strategy=chosen[row.ranks][0], reduction=chosen[row.ranks][1], is_recommended=True)
        for row in predictor.rows()
    ]
    told = [line for line in remarks(Prediction(profile(), asked, predictor, rows, [], [])) if "recommended: " in line]
    methods = [row.method for row in rows]
    assert told == [f"recommended: {methods[0]} below 4 ranks; {methods[1]} from 4 ranks; {methods[2]} from 8 ranks"]


def test_a_strategy_is_left_out_where_it_suits_no_ranks_and_the_reason_is_told() -> None:
    asked = question(
        counts=[2, 3, 256],
        strategies=("pipeline:stages=2", "data-parallel"),
        reductions=["ring"],
        layers=LAYERS,
        per_node=1,
        per_rank=4,
    )
    predictor = Predictor(profile(), asked)
    assert [(row.ranks, row.strategy) for row in predictor.rows()] == [
        (2, "pipeline:stages=2"), (2, "data-parallel"), (3, "data-parallel"), (256, "data-parallel"),
    ]  # fmt: skip
    three, many = predictor.notes
    assert three.startswith("skipped pipeline:stages=2 on 3 ranks: pipeline: ") and "up to 128 ranks" in many


def test_a_recorded_run_is_compared_with_the_prediction_for_its_strategy(tmp_path: Path) -> None:
    changes = ("model.name=lenet", "data.image_size=28", "strategy.name=one-weird-trick", "reduction.name=ring")
    run = record(tmp_path, "squeezenet-digits", *changes)
    config = load_config("squeezenet-digits", changes).config
    run.config_path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    steps = tuple(step.model_copy(update={"model": "lenet+small@28"}) for step in profile().steps)
    asked = list[str]()

    def layers_of(config: Config) -> tuple[Layer, ...]:
        asked.append(config.model.name)
        return LAYERS

    (found,) = check_runs([run.path], profile(steps=steps), model_label(config.model, config.data), layers_of)
    assert found["strategy"] == "one-weird-trick" and asked == ["lenet"]
    keep([found, {**found, "strategy": "data-parallel"}], tmp_path)
    assert [method_of_line(line) for line in history(tmp_path)] == ["one-weird-trick, ring", "ring"]


DIGITS = (
    "squeezenet-digits",
    "--set",
    "model.name=lenet",
    "--set",
    "data.image_size=28",
    "--ranks",
    "2,4",
    "--reductions",
    "ring",
)


def test_the_command_predicts_strategies_and_takes_the_config_s_by_default(firetrain: Command) -> None:
    done = firetrain("predict", *DIGITS, "--strategies", "data-parallel,one-weird-trick", "--json")
    assert done.returncode == 0, done.stderr
    assert [row["strategy"] for row in json.loads(done.stdout)["rows"]] == ["data-parallel", "one-weird-trick"] * 2
    own = firetrain("predict", *DIGITS, "--set", "strategy.name=one-weird-trick")
    assert own.returncode == 0 and "one-weird-trick" in own.stdout and "exchange of activations" in own.stdout, (
        own.stderr
    )
    assert "strategy" not in firetrain("predict", *DIGITS).stdout


@pytest.mark.parametrize(
    ("strategies", "told"),
    [
        ("one-weird-tric", "did you mean one-weird-trick?"),
        ("pipeline:stages=9", "skipped pipeline:stages=9 on 2 ranks"),
    ],
)
def test_a_strategy_that_cannot_be_predicted_is_refused_in_words(
    strategies: str, told: str, firetrain: Command
) -> None:
    done = firetrain("predict", *DIGITS, "--strategies", strategies)
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr, done.stderr
