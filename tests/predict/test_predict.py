"""Predictions: their parts, their limits, FireCaffe's table, and rejected questions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiled import REDUCTIONS, profile, question, reading
from recorded import record

from firetrain.cluster import World
from firetrain.config import load_config
from firetrain.errors import UserError
from firetrain.predict.calibration import CROWDED, Crowd, Measurements, calibrated
from firetrain.predict.epochs import epochs_of, epochs_through
from firetrain.predict.formulas import FORMULAS
from firetrain.predict.network import Network, Shape
from firetrain.predict.predictor import PARTS, Predictor
from firetrain.predict.price import price_long
from firetrain.predict.question import Question, WhatIf
from firetrain.records.parts import OF_A_PLACEMENT
from firetrain.records.profile import Quantity, Residual
from firetrain.topology.catalogue import find_topology

Firetrain = Callable[..., Any]


@settings(max_examples=25, deadline=None)
@given(
    ranks=st.sampled_from([1, 2, 4, 8, 32, 512, 131072]), per_rank=st.integers(1, 64), reduction=st.sampled_from(REDUCTIONS),
    bandwidth=st.floats(0.1, 10), compute=st.floats(0.1, 10),
)  # fmt: skip
def test_a_step_s_parts_sum_to_the_whole_and_one_rank_needs_no_communication(
    ranks: int, per_rank: int, reduction: str, bandwidth: float, compute: float
) -> None:
    asked = question(counts=[ranks], per_rank=per_rank, reductions=[reduction], what_if=WhatIf(bandwidth, 1, compute))
    (row,) = Predictor(profile(), asked).rows()
    assert sum(row.parts.values()) == pytest.approx(row.step_s) and set(row.parts) == set(PARTS) - {
        part.name for part in OF_A_PLACEMENT
    }
    assert row.low_s <= row.step_s * 1.01 and row.step_s <= row.high_s * 1.01
    if ranks == 1:
        assert row.parts["exposed communication"] == row.parts["waiting for the slowest"] == 0 and row.speedup == 1


def test_every_input_matters() -> None:
    base = Predictor(profile(), question(counts=[64], reductions=["ring"])).rows()[0].step_s
    links = profile().links
    changed = {
        "latency": profile(links=tuple(one.model_copy(update={"latency_s": 1e-3}) for one in links)),
        "bandwidth": profile(links=tuple(one.model_copy(update={"bytes_per_s": 1e8}) for one in links)),
        "forward": profile(steps=tuple(s.model_copy(update={"forward_s": Quantity(value=1.0)}) for s in profile().steps)),
        "update": profile(steps=tuple(s.model_copy(update={"update_s": Quantity(value=1.0)}) for s in profile().steps)),
        "jitter": profile(steps=tuple(s.model_copy(update={"jitter": Quantity(value=0.5)}) for s in profile().steps)),
        "ready": profile(steps=tuple(s.model_copy(update={"ready": ((4_000_000, 1.0),)}) for s in profile().steps)),
        "adding": profile(s_per_added_byte=Quantity(value=1e-8)),
        "reading": profile(steps=reading(100.0)),
        "overlap": profile(overlap=False),
    }  # fmt: skip
    slow = profile(links=tuple(one.model_copy(update={"bytes_per_s": 1e9}) for one in links))
    slow_base = Predictor(slow, question(counts=[64], reductions=["ring"])).rows()[0].step_s
    for name, one in changed.items():
        if name in ("ready", "overlap"):  # overlap has an effect only if the link is slow
            one, reference = one.model_copy(update={"links": slow.links}), slow_base
        else:
            reference = base
        found = Predictor(one, question(counts=[64], reductions=["ring"])).rows()[0].step_s
        # reducing all gradients together may be faster than bucket by bucket, because there are fewer messages
        assert found > reference or (name in ("ready", "overlap") and found < reference), name
    crowded = profile(incast=Quantity(value=2.0), congestion=Quantity(value=2.0))
    for name in ("parameter-server", "direct"):
        steps = [
            Predictor(one, question(counts=[64], reductions=[name])).rows()[0].step_s for one in (profile(), crowded)
        ]
        assert steps[1] > steps[0], name


def test_few_ranks_are_priced_by_their_plan_and_many_by_the_formula() -> None:
    asked = question(counts=[6], per_node=1)
    model = Predictor(profile(), asked)
    found = np.ravel(model.allreduce_s(6, "halving-doubling", 4e6))
    plan = find_topology("halving-doubling")(World.even(6, 1))
    assert found[0] == pytest.approx(price_long(plan, World.even(6, 1), 4_000_000, model.network.undrawn()))
    assert len(set(found)) > 100, "and it is as uncertain as the links are"
    formula = FORMULAS["halving-doubling"].seconds(Shape(6, 1), 4e6, model.network)
    assert found[0] != pytest.approx(np.ravel(formula)[0], rel=1e-3), (
        "six ranks are irregular: the formula is only near"
    )
    many = np.ravel(model.allreduce_s(48, "halving-doubling", 4e6))
    assert many[0] == np.ravel(FORMULAS["halving-doubling"].seconds(Shape(48, 1), 4e6, model.network))[0]


def test_a_plan_without_a_formula_is_predicted_as_far_as_it_can_be_priced() -> None:
    rows = Predictor(profile(), question(counts=[4, 8], reductions=["hierarchical:inner=tree", "hierarchical"])).rows()
    assert all(row.step_s > 0 for row in rows) and rows[2].step_s != rows[3].step_s
    with pytest.raises(UserError, match="unknown formula for the reduction"):
        Predictor(profile(), question(counts=[64], reductions=["hierarchical:inner=tree"])).rows()


def test_halved_numbers_on_the_wire_halve_what_is_sent() -> None:
    config = load_config("squeezenet-digits", ["reduction.wire_dtype=bfloat16", "reduction.bucket_mib=null"]).config
    plain = load_config("squeezenet-digits", ["reduction.bucket_mib=1"]).config
    halved, whole = (Question.of(one, [4], ["ring"], 1, epochs=None) for one in (config, plain))
    models = [Predictor(profile(), replace(one, model="m@32")) for one in (halved, whole)]
    assert sum(size for size, _ in models[0].buckets(4)) == 2_000_000
    assert sum(size for size, _ in models[1].buckets(4)) == 4_000_000
    # as training cuts them: the first of a quarter MiB at most, or of one gradient that is larger, the others of 1 MiB
    assert [size for size, _ in models[1].buckets(4)] == [400_000, 800_000, 800_000, 800_000, 800_000, 400_000]


@pytest.mark.parametrize("added", [0.0, 2e-10])
def test_crowds_are_calibrated_to_what_was_measured(added: float) -> None:
    """Also if adding takes longer than the link."""
    network, shape = replace(Network.measured(profile()), s_per_added_byte=added), Shape(4, 1)
    for name, key in CROWDED.items():
        crowded = replace(network, incast=9.0) if key == "incast" else replace(network, congestion=9.0)
        seconds = float(FORMULAS[name].seconds(shape, 4e6, crowded))
        steps = Measurements(
            shape.world, [profile().steps[0].model_copy(update={"model": "squeezenet1_1+small@16"})], profile().links,
            Quantity(value=added), Quantity(value=1e4), Quantity(value=0.1), [Crowd(name, 4_000_000, Quantity(value=seconds))],
        )  # fmt: skip
        found = calibrated(profile(), load_config("squeezenet-digits").config, steps, {})
        assert getattr(found, key).value == pytest.approx(9.0), name
        residual = found.residuals[-1].seconds.value
        question = Question.of(load_config("squeezenet-digits").config, [4], ["tree"], 1)
        assert Predictor(found, question).rows()[0].step_s == pytest.approx(0.1) and residual > 0, (
            "nothing is left over"
        )


def test_a_batch_that_was_measured_faster_than_a_smaller_one_takes_as_long() -> None:
    small, large = profile().steps
    odd = (small, large.model_copy(update={"forward_s": small.forward_s, "backward_s": Quantity(value=1e-3)}))
    rows = Predictor(profile(steps=odd), question(counts=[1, 2, 4], reductions=["ring"], global_batch=256)).rows()
    assert all(row.parts["compute"] > 1e-3 and row.speedup < 10 for row in rows)


def test_what_may_be_nothing_is_as_uncertain_as_it_was_measured() -> None:
    def width(low: float, value: float, high: float) -> float:
        residual = Residual(model="m@32", ranks=4, reduction="ring", seconds=Quantity(value=value, low=low, high=high))
        (row,) = Predictor(profile(residuals=(residual,)), question(counts=[4], reductions=["ring"])).rows()
        return row.high_s - row.low_s

    assert width(0.0, 0.5, 2.0) > 1 and width(0.0, 0.0, 2.0) > 1 and width(0.5, 0.5, 0.5) < 0.1


def test_a_rank_alone_does_not_change_what_only_several_show() -> None:
    before = profile(s_per_added_byte=Quantity(value=1e-10), residuals=(
        Residual(model="squeezenet1_1+small@16", ranks=4, reduction="ring", seconds=Quantity(value=0.1)),
    ))  # fmt: skip
    step = profile().steps[0].model_copy(update={"model": "squeezenet1_1+small@16"})
    alone = Measurements(
        World.even(1, 1), [step], [], Quantity(value=9.0), Quantity(value=50.0), Quantity(value=0.1), []
    )
    after = calibrated(before, load_config("squeezenet-digits").config, alone, {})
    assert (after.s_per_added_byte, after.residuals, after.links) == (
        before.s_per_added_byte, before.residuals, before.links,
    )  # fmt: skip
    assert [one.images_per_s_read and one.images_per_s_read.value for one in after.steps] == [None, None, 50.0]


def test_epochs_come_from_recorded_runs_of_the_same_model_and_target(tmp_path: Path) -> None:
    name = "squeezenet-mini-digits"

    def trained(batch: int, epochs: int, target: float = 0.9) -> None:
        overrides = (f"batch.global_size={batch}", f"target.top1={target}")
        top1 = [0.1] * (epochs - 1) + [0.95]
        run = record(tmp_path, name, *overrides, top1=top1, directory=f"{batch}-{epochs}-{target}")
        run.config_path.write_text(load_config(name, overrides).annotated())

    for batch, epochs in ((16, 4), (16, 6), (16, 5), (64, 9)):
        trained(batch, epochs)
    trained(64, 2, target=0.2)
    config = load_config(name, ["target.top1=0.9"]).config
    points = epochs_of(tmp_path, config)
    assert points == [(16, 5), (64, 9)], "medians, and only of runs with this target"
    assert epochs_through(points)(112) == pytest.approx(13)
    assert epochs_through([(128, 5), (1024, 100)])(32) == 5, "never fewer than the fewest"
    with pytest.raises(UserError, match="no run below .* has trained squeezenet_mini@16 on digits to 0.5"):
        epochs_of(tmp_path, load_config(name, ["target.top1=0.5"]).config)


def test_runs_that_missed_the_target_count_as_never(tmp_path: Path) -> None:
    """Of three runs with 16 images one misses it, of three with 64 two do: nothing is known of the latter batch."""
    name = "squeezenet-mini-digits"
    for batch, hits in ((16, (4, None, 6)), (64, (9, None, None))):
        for number, epochs in enumerate(hits):
            overrides = (f"batch.global_size={batch}", "target.top1=0.9")
            top1 = [0.1] * 9 + [0.2] if epochs is None else [0.1] * (epochs - 1) + [0.95]
            run = record(tmp_path, name, *overrides, top1=top1, directory=f"{batch}-{number}")
            run.config_path.write_text(load_config(name, overrides).annotated())
    config = load_config(name, ["target.top1=0.9"]).config
    assert epochs_of(tmp_path, config) == [(16, 6)]
    (tmp_path / "16-0" / "run.json").unlink()
    (tmp_path / "16-2" / "run.json").unlink()
    with pytest.raises(UserError, match="or half of the runs of each batch missed it"):
        epochs_of(tmp_path, config)


def test_reading_that_is_too_slow_is_what_limits() -> None:
    (row,) = Predictor(profile(steps=reading(10.0)), question(counts=[4], reductions=["ring"])).rows()
    assert row.limit == "input" and row.images_per_s == pytest.approx(10), "four ranks share a node's rate"


def test_thin_links_between_leaf_switches_are_felt_by_those_whose_messages_all_leave_their_leaf() -> None:
    names = ["ring", "tree", "direct", "halving-doubling", "torus"]

    def steps(**what_if: float) -> dict[str, float]:
        asked = question(counts=[64], reductions=names, per_node=1, what_if=WhatIf(**what_if))
        return {row.reduction: row.step_s for row in Predictor(profile(), asked).rows()}

    plain, thin, small = steps(), steps(oversubscription=8), steps(oversubscription=8, leaf=4)
    assert thin["ring"] == plain["ring"] and thin["tree"] == plain["tree"], (
        "one node of each leaf talks to the next leaf"
    )
    assert all(thin[name] > plain[name] for name in ("direct", "halving-doubling", "torus"))
    assert all(small[name] > plain[name] for name in names), "8 times too thin for 4 nodes is too thin for one"
    assert steps(oversubscription=8, leaf=64) == plain, "all on one switch"
