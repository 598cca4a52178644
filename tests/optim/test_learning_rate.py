"""The learning rate of each step equals the published schedules."""

from __future__ import annotations

import math

import pytest

from firetrain.config import load_config, load_text
from firetrain.optim.learning_rate import LearningRate
from firetrain.report.curve import points, text

TEXT = """\
name: test
model: {{name: lenet}}
data: {{name: digits, image_size: 16}}
batch: {{global_size: 1024}}
learning_rate: {{base: 0.1, {rule}}}
target: {{max_epochs: 10}}
"""
LINEAR = "base_batch: 256, scaling: linear"


def rates(rule: str, steps_per_epoch: int = 10) -> list[float]:
    rate = LearningRate.of(load_text(TEXT.format(rule=rule), "test").config, steps_per_epoch)
    return [rate.rate(step) for step in range(rate.total_steps)]


@pytest.mark.parametrize(("rule", "peak"), [
    ("", 0.1), (LINEAR, 0.4), ("base_batch: 256, scaling: sqrt", 0.2), ("base_batch: 256, scaling: 0.6", 0.1 * 4**0.6),
    ("peak: 7.5", 7.5),
])  # fmt: skip
def test_scaling_to_the_global_batch(rule: str, peak: float) -> None:
    assert rates(rule) == pytest.approx([peak] * 100)


def test_gradual_warmup_goes_from_the_small_batch_s_rate_to_the_peak_step_by_step() -> None:
    values = rates(f"{LINEAR}, warmup_epochs: 2")
    assert values[:20] == pytest.approx([0.1 + 0.3 * (step + 1) / 20 for step in range(20)])
    assert values[19:] == pytest.approx([0.4] * 81)


def test_warmup_without_scaling_starts_at_zero() -> None:
    assert rates("warmup_epochs: 0.5")[:5] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1])


@pytest.mark.parametrize(
    ("rule", "formula"),
    [
        ("schedule: linear", lambda t: 0.1 * (1 - t)),
        ("schedule: linear, floor: 0.01", lambda t: 0.01 + 0.09 * (1 - t)),
        ("schedule: poly, power: 0.5", lambda t: 0.1 * math.sqrt(1 - t)),
        ("schedule: poly, power: 2", lambda t: 0.1 * (1 - t) ** 2),
        ("schedule: cosine", lambda t: 0.05 * (1 + math.cos(math.pi * t))),
        ("schedule: step, every_epochs: 3", lambda t: 0.1 * 0.1 ** int(t * 10 / 3)),
        ("schedule: step, every_epochs: 2.5, factor: 0.5", lambda t: 0.1 * 0.5 ** int(t * 4)),
    ],
)
def test_schedules_are_their_formulas(rule: str, formula: object) -> None:
    assert rates(rule) == pytest.approx([formula(step / 100) for step in range(100)])  # type: ignore[operator]


def test_the_schedule_is_counted_from_the_end_of_warmup() -> None:
    values = rates("schedule: linear, warmup_epochs: 2")
    assert values[20] == pytest.approx(0.1) and values[60] == pytest.approx(0.05)


def test_or_from_the_start_if_the_config_says_so() -> None:
    values = rates("schedule: linear, warmup_epochs: 2, decay_from: start")
    assert values[20:] == pytest.approx([0.1 * (1 - step / 100) for step in range(20, 100)])


def test_warmup_from_zero_also_where_the_peak_is_above_the_base() -> None:
    assert rates(f"{LINEAR}, warmup_epochs: 2, warmup_from: zero")[:20] == pytest.approx(
        [0.02 * (n + 1) for n in range(20)]
    )


def test_the_published_recipes_come_out() -> None:
    """0.01 at 32 is 0.08 at 1024 for GoogLeNet (FireCaffe); SqueezeNet's 170,000 steps are 67.94 epochs."""
    assert load_config("googlenet-firecaffe").config.peak_rate == pytest.approx(0.08, rel=1e-3)
    assert pytest.approx(67.94, abs=0.01) == 170_000 * 512 / 1_281_167
    assert load_config("squeezenet-b512").config.target.max_epochs == 68


@pytest.mark.parametrize("name", ["googlenet-firecaffe", "quickstart", "googlenet-b8192"])
def test_the_curve_shows_the_highest_rate_and_the_epochs(name: str) -> None:
    config = load_config(name).config
    drawn = text(config).splitlines()
    highest = max(rate for _, rate in points(config))
    assert drawn[0].split()[0] == f"{highest:g}" and drawn[-1].endswith(f"{config.target.max_epochs} epochs")
    assert len(drawn) == 9 and max(map(len, drawn)) <= 84


def test_a_limit_of_steps_ends_the_schedule_there() -> None:
    limited = TEXT.format(rule="schedule: linear").replace("max_epochs: 10", "max_epochs: 10, max_steps: 25")
    rate = LearningRate.of(load_text(limited, "test").config, 10)
    assert rate.total_steps == 25 and rate.rate(24) == pytest.approx(0.1 / 25)


def test_the_rule_is_told_with_its_numbers() -> None:
    rate = LearningRate.of(load_text(TEXT.format(rule=f"{LINEAR}, warmup_epochs: 1"), "test").config, 10)
    assert rate.explain(1024) == (
        "0.1 x 1024/256 = 0.4 (linear scaling, Goyal et al. 2017), warmup 1 epochs (10 steps), then constant over 90 steps"
    )
