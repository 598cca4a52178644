"""The report shows exactly what the records contain."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded import IMAGES, record
from reported import report_of, seeds

from firetrain.cli.report import report
from firetrain.errors import UserError
from firetrain.report.clocks import CLOCKS
from firetrain.report.doubts import doubts
from firetrain.report.groups import group
from firetrain.report.history import read, read_all
from firetrain.report.statistics import Estimate, mann_whitney, median_estimate, olympic_mean, ratio

Firetrain = Callable[..., Any]


def test_runs_that_differ_only_in_their_seed_are_one_row_against_the_baseline(tmp_path: Path) -> None:
    seeds(tmp_path)
    seeds(tmp_path, "reduction.name=ring", times_s=(4.0, 5.0, 6.0))
    plain, ring = report_of(tmp_path).main.rows
    assert (plain["config"], ring["config"]) == ("quickstart", "quickstart reduction=ring")
    # three epochs of steps and evaluations, and two seconds before them
    assert plain["time-to-accuracy s"] == 2 + 3 * 11 and ring["time-to-accuracy s"] == 2 + 3 * 6
    assert plain["95 %"] == (32, 38) and (plain["runs"], plain["reached"]) == (3, 3)
    assert ring["speedup"] == pytest.approx(35 / 20) and ring["efficiency"] == pytest.approx(35 / 20)
    (other,) = report_of(tmp_path, baseline="quickstart reduction=ring").against
    assert other.speedup is not None and other.speedup.value == pytest.approx(20 / 35)
    with pytest.raises(UserError, match="did you mean quickstart?"):
        report_of(tmp_path, baseline="quikstart")


def test_the_numbers_are_those_that_a_few_lines_get_from_the_metrics(tmp_path: Path) -> None:
    seeds(tmp_path, "target.train_on=true", times_s=(7.0, 11.0, 9.5), top1=(0.5, 0.975, 0.9, 0.98))
    (row,) = report_of(tmp_path).main.rows
    times, epochs, exposed, speeds = [], [], [], []
    for run in tmp_path.iterdir():
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        hit = next(line for line in lines if line["kind"] == "evaluation" and line["top1"] >= 0.97)
        times.append(hit["elapsed_s"])
        epochs.append(hit["epoch"])
        steps = [line for line in lines if line["kind"] == "step"]
        exposed.append(100 * sum(s["exposed_communication_s"] for s in steps) / sum(s["step_s"] for s in steps))
        speeds.append(4 * IMAGES / lines[-1]["train_s"])
    assert row["time-to-accuracy s"] == statistics.median(times) and row["epochs"] == statistics.median(epochs) == 2
    assert row["exposed comm %"] == pytest.approx(statistics.median(exposed))
    assert row["images/s"] == pytest.approx(statistics.median(speeds))


def test_the_command_offers_every_clock() -> None:
    (option,) = [one for one in report.params if one.name == "clock"]
    assert tuple(option.type.choices) == tuple(CLOCKS)  # type: ignore[attr-defined]


def test_every_clock_counts_what_its_sentence_says(tmp_path: Path) -> None:
    run = record(
        tmp_path, "quickstart", "target.train_on=true", top1=(0.9, 0.98, 0.99), queue_s=100, startup_s=2000, logged=1
    )
    # make the first logged line slow, like a warm-up: one of the 10 s epochs took 10 s more
    text = (run.path / "metrics.jsonl").read_text()
    first, rest = text.split("\n", 1)
    line = json.loads(first)
    slow = {**line, "step_s": 2 * line["step_s"]}
    rows = [json.loads(row) for row in rest.splitlines()]
    for row in rows:
        row["elapsed_s"] += 10
        if row["kind"] == "evaluation":
            row["train_s"] += 10
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [slow, *rows]))
    history = read(run)
    found = {name: clock.seconds(history) for name, clock in CLOCKS.items()}
    hit_s = 2 + 10 + 2 * 11
    assert found == {
        "mlperf": hit_s + (2000 - 1800), "dawnbench": 2000 + hit_s - 2, "algoperf": 30, "airbench": pytest.approx(30),
        "wall": 100 + 2000 + hit_s,
    }  # fmt: skip


def test_a_speedup_is_the_product_of_where_it_comes_from(tmp_path: Path) -> None:
    seeds(tmp_path)
    seeds(tmp_path, "batch.global_size=64", times_s=(4.0, 5.0, 7.0), top1=(0.5, 0.9, 0.95, 0.98))
    (row,) = next(table for table in report_of(tmp_path).tables if table.title.startswith("where the speedup")).rows
    assert row["speedup"] == pytest.approx(row["throughput"] * row["samples"] * row["overhead"])
    assert row["samples"] == pytest.approx(3 / 4) and row["throughput"] > 1 > row["overhead"]


def test_a_difference_is_called_only_where_a_test_shows_it(tmp_path: Path) -> None:
    seeds(tmp_path, times_s=(10.0, 10.1, 10.2))
    seeds(tmp_path, "reduction.name=ring", times_s=(5.0, 5.1, 5.2))
    (few,) = report_of(tmp_path).differences
    assert (
        "no significant difference" in few and "too few runs for significance" in few and "1.74x, 1.70 to 1.78" in few
    )
    seeds(tmp_path, times_s=(10.3, 10.4))
    seeds(tmp_path, "reduction.name=ring", times_s=(5.3, 5.4))
    (more,) = report_of(tmp_path).differences
    assert "times as fast as quickstart" in more and "p = 0.0079" in more and "5 against 5 runs" in more
    seeds(tmp_path, "reduction.name=native", times_s=(9.9, 10.15, 10.25, 10.35, 10.6))
    corrected = {one.group.label: one.p for one in report_of(tmp_path).against}
    assert corrected["quickstart reduction=ring"] == pytest.approx(2 * 0.00793650, rel=1e-4), "Holm: of two tests"


@pytest.mark.parametrize("ours", [(0,), (0, 1), (1, 1), (0, 0, 1), (0, 1, 1)])
@pytest.mark.parametrize("theirs", [(0,), (1,), (0, 1), (0, 0, 1)])
def test_a_few_runs_that_may_miss_their_target_are_compared(
    ours: tuple[int, ...], theirs: tuple[int, ...], tmp_path: Path
) -> None:
    """`1` is a run that misses it. Every number of runs has its sentence, a single one without an interval."""
    for seed, misses in enumerate(ours):
        record(tmp_path, seed=seed, top1=(0.5, 0.6) if misses else (0.5, 0.99))
    for seed, misses in enumerate(theirs):
        record(tmp_path, "quickstart", "reduction.name=ring", seed=seed, top1=(0.5, 0.6) if misses else (0.5, 0.99))
    found = report_of(tmp_path)
    text = " ".join(found.differences)
    both_have_times = statistics.median(ours) == statistics.median(theirs) == 0
    assert ("no significant difference" in text) == both_have_times
    assert ("ring (1.00x, p = 1)" in text) == (both_have_times and 1 in (len(ours), len(theirs)))
    assert "None" not in text and "nan" not in text and found.main.text_table().markdown()


def test_runs_that_miss_their_target_count_as_infinitely_slow(tmp_path: Path) -> None:
    record(tmp_path, seed=1)
    record(tmp_path, seed=2, top1=(0.5, 0.6, 0.7))
    record(tmp_path, seed=3)
    record(tmp_path, seed=4, top1=(0.5,), state="failed", reason="diverged at step 3: the loss is nan")
    record(tmp_path, seed=5, state="failed", reason="rank 1 was killed")
    (found,) = report_of(tmp_path).groups
    assert sorted(found.times(CLOCKS["mlperf"])) == [35, 35, math.inf, math.inf]
    assert found.time(CLOCKS["mlperf"]).value == math.inf, "half of them missed it"
    told = report_of(tmp_path)
    (row,), text = told.main.rows, told.main.text_table().markdown()
    assert row["config"] == "quickstart (failed)" and (row["runs"], row["reached"]) == (5, 2)
    assert "| not reached |" in text and "inf" not in text and told.as_json()["groups"][0]["time-to-accuracy s"] is None
    # with one more run that reaches it, the median is a number again, and its interval is unbounded
    record(tmp_path, seed=6)
    (row,) = report_of(tmp_path).main.rows
    assert row["time-to-accuracy s"] == 35 and row["95 %"] == (35, math.inf)
    assert "35.0 or more" in report_of(tmp_path).main.text_table().markdown()


def test_a_speedup_is_that_of_medians_with_the_runs_that_missed(tmp_path: Path) -> None:
    assert ratio([10.0, 20.0, math.inf], [5.0, 10.0, 10.0]) is not None
    found = ratio([10.0, 20.0, math.inf], [5.0, 10.0, 10.0])
    assert (
        found and found.interval and found.value == 2.0 and found.interval[0] <= 1.0 and found.interval[1] == math.inf
    )
    assert ratio([10.0, math.inf, math.inf], [5.0, 10.0, 10.0]) is None
    both = ratio([1.0, 1.0, math.inf], [1.0, 1.0, math.inf])
    assert both == Estimate(1.0, (0.0, math.inf)), "nothing is sure where both may never get there"


def test_mlperf_s_mean_leaves_out_the_fastest_and_the_slowest(tmp_path: Path) -> None:
    seeds(tmp_path, times_s=(1.0, 9.0, 10.0, 11.0, 50.0))
    found = report_of(tmp_path, olympic=True).main
    assert found.rows[0]["time-to-accuracy s"] == 2 + 3 * 11 and "fastest and the slowest" in " ".join(found.notes)
    assert olympic_mean([1.0, 2.0]) is None and olympic_mean([1.0, 2.0, math.inf]) == 2.0


def test_statistics_are_those_of_the_textbook() -> None:
    # Mann and Whitney's exact two-sided p for completely separated samples: 2 / C(n + m, n)
    assert mann_whitney([1, 2, 3], [4, 5, 6]) == pytest.approx(2 / math.comb(6, 3))
    assert mann_whitney([1, 2, 3, 4], [5, 6, 7, math.inf]) == pytest.approx(2 / math.comb(8, 4))
    assert mann_whitney([], [1.0]) is None
    alone, several = median_estimate([3.0]), median_estimate([1.0, 2.0, 10.0])
    assert alone == Estimate(3.0) and several == Estimate(2.0, (1.0, 10.0))


@pytest.mark.parametrize(
    ("overrides", "facts", "told"),
    [
        ((), {}, "only 1 run;"),
        ((), {"top1": (0.5, 0.971)}, "less than two standard errors (1.8 points, for 360 test images)"),
        (("target.train_on=true",), {"top1": (0.9, 0.98, 0.96)}, "met the target and ended below it"),
        (("target.evaluate_every_epochs=2",), {}, "may have been met more than 5% of the time earlier"),
        ((), {"top1": (0.1,)}, "1 of 1 run missed the target"),
        (
            ("batch.global_size=512", "learning_rate.base_batch=32", "learning_rate.scaling=linear", "force=true"),
            {}, "linear scaling over 16 times the batch fails on squeezenet1_1",
        ),
        ((), {"warnings": ["epoch 2 taught nothing: its loss is ln 10. Likely causes: many"]}, "seed 1: epoch 2 taught nothing"),
    ],
)  # fmt: skip
def test_what_a_reader_should_know_is_told(
    overrides: tuple[str, ...], facts: dict[str, Any], told: str, tmp_path: Path
) -> None:
    histories, _ = read_all([record(tmp_path, "quickstart", *overrides, **facts)])
    assert told in "\n".join(doubts(group(histories), CLOCKS["mlperf"]))


def test_three_runs_far_above_their_target_are_not_doubted(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        record(tmp_path, "quickstart", "target.top1=0.5", seed=seed, top1=(0.9,))
    assert not report_of(tmp_path).doubts


@pytest.mark.parametrize(("missed", "epochs", "cost"), [(0, "2", 36.0), (1, "3", 47.0), (2, "not reached", math.inf)])
def test_a_miss_is_infinite_in_every_median_of_a_row(tmp_path: Path, missed: int, epochs: str, cost: float) -> None:
    """Three seeds reach 97 % after 1, 2 and 3 epochs of 11 s; the first ones of them miss it."""
    for seed in (1, 2, 3):
        top1 = [0.5] * (seed - 1) + [0.98 if seed > missed else 0.6]
        record(
            tmp_path, top1=top1, seed=seed, epoch_s=10.0, evaluation_s=1.0, price_per_node_hour=3600.0, startup_s=12.0
        )
    record(tmp_path, "quickstart", "reduction.name=ring", top1=[0.98])
    told = report_of(tmp_path)
    rows = {row["config"]: row for row in told.main.rows}
    table = told.main.text_table()
    shown = {row[0]: dict(zip(table.headings, row, strict=True)) for row in table.rows}
    assert shown["quickstart"]["epochs"] == epochs and shown["quickstart"]["reached"] == str(3 - missed)
    assert rows["quickstart"]["cost to target"] == pytest.approx(cost)
    assert shown["quickstart"]["cost to target"] == ("not reached" if cost == math.inf else f"{cost:.2f}")
    assert bool(told.against[0].factors) == (missed == 0), "factors of the lucky runs alone would say too much"
