"""What can be measured for a profile, and what the measurements say as text."""

from __future__ import annotations

import pytest
from profiled import profile

from firetrain.cluster import World
from firetrain.config import load_config
from firetrain.config.label import model_label
from firetrain.errors import UserError
from firetrain.predict.calibration import Crowd, Measurements, calibrated, refuse_uncalibratable
from firetrain.records.profile import Quantity, Residual
from firetrain.report.measured_profile import lines

CONFIG = load_config("squeezenet-digits", ["batch.global_size=64", "reduction.name=ring"]).config
LABEL = model_label(CONFIG.model, CONFIG.data)


@pytest.mark.parametrize(
    ("overrides", "reduction", "world", "said"),
    [
        (["batch.global_size=3"], "ring", World.even(2, 2), "a batch of 3 is too small for 4 ranks"),
        (["batch.per_rank_max=8"], "ring", World.even(2, 2), r"does not support micro-batches.*\(is 8\)"),
        ([], "top-k", World.even(2, 2), "unknown formula for the reduction 'top-k'"),
        ([], "ring", World((0, 0, 1)), "the same number of ranks on every node"),
    ],
)
def test_what_cannot_be_timed_is_refused_before_it_is_timed(
    overrides: list[str], reduction: str, world: World, said: str
) -> None:
    batch = load_config("squeezenet-digits", ["batch.global_size=64", *overrides]).config.batch
    with pytest.raises(UserError, match=said):
        refuse_uncalibratable(batch, reduction, world)


def test_micro_batches_that_are_not_needed_are_no_obstacle() -> None:
    batch = load_config("squeezenet-digits", ["batch.global_size=64", "batch.per_rank_max=16"]).config.batch
    refuse_uncalibratable(batch, "native", World.even(2, 2))


def measured(whole_s: float, world: World) -> Measurements:
    known = profile()
    steps = [step.model_copy(update={"model": LABEL, "image_size": 16}) for step in known.steps]
    return Measurements(
        world, steps, known.links, added=Quantity(value=1e-10), read=Quantity(value=900.0), whole=Quantity(value=whole_s),
        crowds=[Crowd("parameter-server", 1 << 20, Quantity(value=5e-3, low=4e-3, high=6e-3))], gap=Quantity(value=2e-6),
    )  # fmt: skip


def test_what_the_model_does_not_explain_is_kept_as_the_residual_and_is_never_negative() -> None:
    world = World.even(2, 2)
    quick = calibrated(profile(), CONFIG, measured(1e-6, world), {})
    assert [one.seconds.value for one in quick.residuals] == [0.0]
    slow = calibrated(profile(), CONFIG, measured(1.0, world), {})
    (residual,) = slow.residuals
    assert (residual.model, residual.ranks, residual.reduction) == (
        LABEL,
        4,
        "ring",
    ) and 0.9 < residual.seconds.value < 1.0
    assert slow.message_gap == Quantity(value=2e-6) and slow.ranks_per_node == 2


def test_other_models_and_their_residuals_stay_in_the_profile() -> None:
    other = Residual(model="m@32", ranks=2, reduction="ring", seconds=Quantity(value=0.5))
    found = calibrated(profile(residuals=(other,)), CONFIG, measured(1.0, World.even(2, 2)), {})
    assert {step.model for step in found.steps} == {"m@32", LABEL} and other in found.residuals


def test_an_incast_is_the_factor_that_explains_the_measured_time() -> None:
    found = calibrated(profile(), CONFIG, measured(1.0, World.even(4, 1)), {})
    assert found.incast is not None and found.incast.low < found.incast.value < found.incast.high  # type: ignore[operator]
    assert found.congestion is None


def test_the_measurements_are_told_in_a_line_each() -> None:
    world = World.even(2, 2)
    found = measured(1.0, world)
    told = list(lines(found, calibrated(profile(), CONFIG, found, {})))
    assert told[0] == ("4 images per rank: forward 1.40 ms, backward 2.80 ms, update 0.50 ms, jitter 2.0%")
    assert "between nodes, all: 10.0 us, 10000.0 MB/s" in told and "per-message overhead at each end: 2.0 us" in told
    assert "image loading: 900 images/s per node" in told
    assert told[-1].startswith("step on 4 ranks: 1000.00 ms, of which 99")
    assert any(line.startswith("incast: a link is") for line in told)
