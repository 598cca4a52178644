"""Questions to a prediction: what-ifs, epochs by batch, failures; wrong ones are reported before anything is computed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrain.config import load_config
from firetrain.errors import UserError
from firetrain.predict.epochs import epochs_through, parse_epochs
from firetrain.predict.goodput import checkpoint_interval_s, goodput
from firetrain.predict.question import Question, WhatIf


def question(**more: object) -> Question:
    facts: dict[str, object] = {"counts": [4], "reductions": ["ring"], "per_node": 1, "global_batch": 128}
    return Question(model="lenet", **{**facts, **more})  # type: ignore[arg-type]


def test_a_what_if_changes_what_it_names() -> None:
    assert WhatIf.parse("bandwidth=x2,latency=0.5") == WhatIf(bandwidth=2.0, latency=0.5)
    assert WhatIf.parse("") == WhatIf()
    assert WhatIf.parse("oversubscription=4,leaf=32") == WhatIf(oversubscription=4.0, leaf=32.0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("bandwith=2", "bandwith=2: unknown, did you mean bandwidth? (valid: bandwidth, latency, compute"),
        ("bandwidth", "bandwidth: expected a number above 0, for instance bandwidth=x2"),
        ("bandwidth=0", "expected a number above 0"),
        ("latency=inf", "expected a number above 0"),
        ("compute=nan", "expected a number above 0"),
        ("leaf=32", "leaf has no effect without oversubscription"),
        ("oversubscription=0.5", "oversubscription 1 (none) or more"),
        ("oversubscription=2,leaf=1.5", "leaf must be an integer"),
    ],
)
def test_a_what_if_that_cannot_be_is_told(text: str, told: str) -> None:
    with pytest.raises(UserError) as error:
        WhatIf.parse(text)
    assert told in str(error.value)


def test_a_config_s_batch_buckets_and_wire_are_asked_about() -> None:
    config = load_config("squeezenet-digits", ["reduction.bucket_mib=0.5", "reduction.wire_dtype=bfloat16"]).config
    asked = Question.of(config, [2, 4], ["ring"], per_node=2)
    assert (asked.global_batch, asked.bucket_bytes, asked.wire_bytes) == (config.batch.global_size, 1 << 19, 2)
    assert [asked.batch(ranks) for ranks in asked.counts] == [config.batch.global_size] * 2
    weak = Question.of(config, [2, 4], ["ring"], per_node=2, per_rank=16)
    assert [weak.batch(ranks) for ranks in weak.counts] == [32, 64]


@pytest.mark.parametrize("text", ["", "32", "32:", ":64", "32:64,", "0:5", "32:-1", "32:0", "a:b", "32:nan", "32:inf"])
def test_epochs_that_cannot_be_read_are_told_with_an_example(text: str) -> None:
    with pytest.raises(UserError, match="expected BATCH:EPOCHS,..., for instance 32:64,1024:72"):
        parse_epochs(text)


def test_epochs_are_a_line_through_two_batches() -> None:
    epochs = epochs_through(parse_epochs("32:64,1024:72"))
    assert epochs(32) == pytest.approx(64) and epochs(1024) == pytest.approx(72)
    assert epochs(2016) == pytest.approx(80)


@given(
    st.lists(st.tuples(st.integers(1, 1 << 16), st.floats(min_value=1, max_value=1000)), min_size=1, max_size=5),
    st.integers(1, 1 << 17), st.integers(1, 1 << 17),
)  # fmt: skip
def test_a_larger_batch_never_needs_fewer_epochs(points: list[tuple[int, float]], one: int, other: int) -> None:
    epochs = epochs_through(points)
    small, large = sorted((one, other))
    assert min(count for _, count in points) * (1 - 1e-9) <= epochs(small) <= epochs(large) * (1 + 1e-9)


def test_without_failures_nothing_is_lost() -> None:
    assert goodput(question(), nodes=1000) == 1.0


def test_young_s_interval_wastes_least() -> None:
    """By the formula of the docstring, no other interval wastes less time than the chosen one."""
    asked, nodes = question(mtbf_h=1000.0, checkpoint_s=20.0), 100
    between_s, chosen_s = 1000.0 * 3600 / nodes, checkpoint_interval_s(asked, nodes)
    assert chosen_s == pytest.approx(math.sqrt(2 * 20.0 * between_s))

    def kept(interval_s: float) -> float:
        return 1 - 20.0 / interval_s - (interval_s / 2 + 20.0) / between_s

    assert goodput(asked, nodes) == pytest.approx(kept(chosen_s))
    assert all(kept(chosen_s * factor) <= kept(chosen_s) for factor in (0.5, 0.9, 1.1, 2.0))


def test_more_nodes_fail_more_often_and_the_share_stays_above_nothing() -> None:
    asked = question(mtbf_h=1.0, checkpoint_s=600.0)
    shares = [goodput(asked, nodes) for nodes in (1, 10, 100, 10_000)]
    assert shares == sorted(shares, reverse=True) and shares[-1] > 0
