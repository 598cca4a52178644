"""The report tells what the records say, and nothing that they do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from firetrain.config import load_config
from firetrain.errors import UserError
from firetrain.records import Run, find_runs
from firetrain.report.summary import headline, where_time_went
from firetrain.report.table import COLUMNS, rows, select


def summary(**changes: Any) -> dict[str, Any]:
    facts = {
        "state": "completed", "reached": True, "top1": 0.975, "top5": 1.0, "epochs": 3, "steps": 30, "images": 960,
        "world_size": 4, "nodes": 1, "time_to_accuracy_s": 20.0, "elapsed_s": 20.0, "train_s": 15.0,
        "evaluation_s": 4.0, "checkpoint_s": 1.0, "startup_s": 3.0, "data_s": 1.0, "compute_s": 10.0,
        "exposed_communication_s": 3.0, "images_per_s": 64.0, "bad_images": 0,
    }  # fmt: skip
    return {**facts, **changes}


def record(folder: Path, second: int, facts: dict[str, Any] | None, *overrides: str, state: str = "completed") -> Run:
    run = Run.create(
        folder,
        load_config("quickstart", overrides),
        datetime(2026, 1, 2, 3, 4, second, tzinfo=timezone.utc),
        {"ranks": 4},
    )
    run.update(state=state)
    if facts is not None:
        run.write("summary.json", facts)
    return run


def test_runs_stand_side_by_side_with_speedup_against_the_first(tmp_path: Path) -> None:
    record(tmp_path, 1, summary())
    record(tmp_path, 2, summary(time_to_accuracy_s=8.0), "reduction.name=ring")
    record(tmp_path, 3, summary(reached=False, time_to_accuracy_s=None))
    first, second, third = rows(find_runs(tmp_path))
    assert [row["reduction"] for row in (first, second)] == ["tree", "ring"]
    assert (first["speedup"], second["speedup"], third["speedup"]) == (1.0, 2.5, None)
    assert first["exposed comm %"] == pytest.approx(100 * 3 / 14)
    assert set(COLUMNS) <= set(first)


def test_a_run_that_failed_or_still_goes_on_is_shown_as_such(tmp_path: Path, firetrain: Callable[..., Any]) -> None:
    record(tmp_path / "results", 1, None, state="failed")
    record(tmp_path / "results", 2, summary())
    done = firetrain("report")
    assert done.returncode == 0 and "(failed)" in done.stdout
    as_json = json.loads(firetrain("report", "--json").stdout)
    assert [row["state"] for row in as_json] == ["failed", "completed"]
    assert as_json[0]["time-to-accuracy s"] is None


def test_the_parts_of_the_time_sum_to_the_whole() -> None:
    parts = where_time_went(summary())
    assert sum(parts.values()) == 20.0 and parts["other_s"] == pytest.approx(1.0)


def test_the_headline_says_whether_the_target_was_reached(tmp_path: Path) -> None:
    assert headline(record(tmp_path, 1, summary())) == (
        "target 97.00% reached: top-1 97.50% after 3 epochs; time-to-accuracy 20.0 s"
    )
    missed = record(tmp_path, 2, summary(reached=False, top1=0.5, time_to_accuracy_s=None))
    assert headline(missed) == "target 97.00% not reached: top-1 50.00% after 3 epochs, 20.0 s"
    open_ended = record(tmp_path, 3, summary(reached=False), "target.top1=null")
    assert headline(open_ended) == "done: top-1 97.50% after 3 epochs, 20.0 s"


def test_runs_are_named_by_path_or_by_name_and_strangers_are_refused(tmp_path: Path) -> None:
    run = record(tmp_path, 1, summary())
    found = find_runs(tmp_path)
    assert select([run.name], found) == select([str(run.path)], []) == [run]
    with pytest.raises(UserError, match="not a run's directory"):
        select([str(tmp_path)], found)
    with pytest.raises(UserError, match="no runs yet"):
        select([], [])


def test_a_metrics_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    run = record(tmp_path, 1, summary())
    run.append({"kind": "step", "step": 1})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "st')
    assert [row["step"] for row in run.metrics()] == [1]


def test_two_runs_of_one_second_have_directories_of_their_own(tmp_path: Path) -> None:
    assert record(tmp_path, 1, None).path != record(tmp_path, 1, None).path


def test_runs_as_markdown_and_for_spreadsheets(tmp_path: Path, firetrain: Callable[..., Any]) -> None:
    record(tmp_path / "results", 1, summary())
    lines = firetrain("report", "--format", "markdown").stdout.splitlines()
    assert lines[0].startswith("| run | model |") and set(lines[1]) <= set("|-: ") and len(lines) == 3
    record(tmp_path / "results", 2, summary(), "reduction.name=ring")
    chosen = firetrain("report", "--format", "csv", "--where", "reduction=ring", "--columns", "reduction,epochs").stdout
    assert chosen == "reduction,epochs\nring,3\n"
    wrong = firetrain("report", "--columns", "epoch")
    assert wrong.returncode == 2 and "unknown column 'epoch', did you mean epochs?" in wrong.stderr
    assert firetrain("report", "--format", "csv").stdout.splitlines()[0].split(",") == list(COLUMNS)


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "cannot read"), ("{", "is not a comparison's results"), ('{"version": 2}', "is not a comparison's results"),
     ('{"version": 7, "rows": []}', "this firetrain reads version 2")],
)  # fmt: skip
def test_a_file_that_is_no_comparison_is_told(
    content: str | None, told: str, tmp_path: Path, firetrain: Callable[..., Any]
) -> None:
    if content is not None:
        (tmp_path / "comparison.json").write_text(content)
    done = firetrain("report", "comparison.json")
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr
