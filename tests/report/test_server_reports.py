"""Reports of runs with parameter servers, and of simulated policies beside them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded import record
from reported import report_of

from firetrain.errors import UserError
from firetrain.records.outcome import Outcome, Point, WorkerSpan
from firetrain.report.page import page
from firetrain.report.plots import plots
from firetrain.report.simulated import load, of_outcomes
from firetrain.report.simulated_plots import plots as simulated_plots


def outcome(policy: str = "async", seed: int = 1, **changed: Any) -> Outcome:
    made = Outcome(
        policy, 2, seed, 0.9, 20.0, 10.0, (Point(10.0, 50, 0.95, 0.2), Point(20.0, 100, 0.97, 0.1)), 100, 100, 0, 0.25,
        {0: 40, 1: 50, 5: 10}, (WorkerSpan(0, 0.0, 0.1, 1.1, 1.2), WorkerSpan(1, 0.0, 0.1, 2.1, 2.2)),
    )  # fmt: skip
    return replace(made, **changed)


def served(folder: Path, seed: int, staleness: dict[str, int], **facts: Any) -> None:
    """A run with a parameter server, whose summary has these gradients by staleness."""
    run = record(folder, "quickstart", "strategy.name=parameter-server:policy=async", seed=seed)
    summary = json.loads((run.path / "summary.json").read_text())
    mean = sum(int(value) * number for value, number in staleness.items()) / sum(staleness.values())
    counted = {"updates": 100, "dropped": 0, "staleness": staleness, "mean_staleness": mean, "workers_lost": 0, **facts}
    (run.path / "summary.json").write_text(json.dumps({**summary, "reduction": counted}))


def test_what_servers_have_counted_has_a_table_and_a_plot(tmp_path: Path) -> None:
    served(tmp_path, 1, {"0": 10, "3": 30}, dropped=2, workers_lost=1)
    served(tmp_path, 2, {"1": 20, "7": 20}, dropped=4, workers_lost=2)
    record(tmp_path, "quickstart", "reduction.name=ring")
    found = report_of(tmp_path)
    (row,) = next(table for table in found.tables if table.title == "parameter servers").rows
    assert (row["staleness"], row["largest"]) == ((90 / 40 + 160 / 40) / 2, 7)
    assert (row["dropped"], row["workers lost"], row["idle %"]) == (3, 3, 50), "half of the recorded steps is compute"
    (plot,) = [plot for plot in plots(found) if plot.name == "staleness"]
    of_values = dict.fromkeys(range(8), 0.0) | {0: 12.5, 1: 25, 3: 37.5, 7: 25}
    assert [(x, y) for _, x, y, _ in plot.points] == [*of_values.items()]
    assert "Staleness of gradients" in page(found) and "parameter servers" in json.dumps(found.as_json())


def test_a_report_without_servers_has_neither(tmp_path: Path) -> None:
    record(tmp_path)
    found = report_of(tmp_path)
    assert not {"parameter servers", "simulated policies"} & {table.title for table in found.tables}
    assert not [plot for plot in plots(found) if "staleness" in plot.name]


def test_simulated_policies_stand_beside_runs(tmp_path: Path) -> None:
    record(tmp_path)
    found = replace(report_of(tmp_path), simulated=[outcome("sync", staleness={0: 100}), outcome(), outcome(seed=2)])
    text = page(found)
    assert "Simulated policies" in text and "When workers compute" in text
    assert "What backup workers are worth" not in text, "there is only one number of backup workers"
    assert {plot.name for plot in plots(found)} > {"simulated-accuracy", "simulated-staleness", "simulated-workers"}


def test_the_row_of_a_policy_has_medians_over_its_seeds() -> None:
    seeds = [
        outcome(seed=seed, target_s=hit, idle_share=idle)
        for seed, hit, idle in ((1, 10.0, 0.1), (2, 30.0, 0.3), (3, None, 0.2))
    ]
    (row,) = of_outcomes(seeds).rows
    assert (row["target s"], row["reached"], row["idle %"]) == (30.0, "2 of 3", pytest.approx(20))
    assert (row["staleness"], row["largest"], row["ms an update"]) == (pytest.approx(1.0), 5, pytest.approx(200))
    (cells,) = of_outcomes(seeds).text_table().rows
    assert cells[:4] == ["async", "30.0", "10.0 or more", "2 of 3"] and "10 to 30" in cells, "the interval of idle time"
    (without,) = of_outcomes([outcome(target=None, target_s=None)]).text_table().rows
    assert without[1:4] == ["-", "-", "-"] and not any("to" in cell for cell in without), "one seed has no interval"


def test_spare_workers_are_worth_the_images_per_second_that_they_add() -> None:
    drawn = [
        outcome(policy, seconds=seconds)
        for policy, seconds in (
            ("sync", 20.0),
            ("backup:spare=1", 10.0),
            ("backup:spare=2,rate=staleness", 40.0),
            ("ssp", 9.0),
        )
    ]
    (plot,) = [plot for plot in simulated_plots(drawn) if plot.name == "backup-workers"]
    assert [(x, y) for _, x, y, _ in plot.points] == [(0, 0.2), (1, 0.1), (2, 0.4), (0, 1), (1, 2), (2, 0.5)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "text: Invalid JSON"), ("{}", "text: Input should be a valid"), ("[]", "without an evaluation"),
        ('[{"policy": "sync"}]', "0.workers: Field required"),
    ],
)  # fmt: skip
def test_a_file_that_simulate_did_not_print_is_refused(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "simulated.json").write_text(text)
    with pytest.raises(UserError, match="is not what firetrain simulate --json prints") as caught:
        load(tmp_path / "simulated.json")
    assert told in str(caught.value)
