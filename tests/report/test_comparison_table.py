"""A comparison's table follows the one list of a step's parts, also when that list grows."""

from __future__ import annotations

from typing import Any

import pytest

from firetrain.records.parts import OF_A_STEP, Part
from firetrain.report import compared, comparison_table
from firetrain.report.compared import Compared

BUBBLE = Part("bubble_s", "pipeline bubble", "#123456", "bubble")


def row(**facts: Any) -> Compared:
    line: dict[str, Any] = {
        "config": "c", "reduction": "ring", "nodes": 2, "ranks": 4, "value_s": 0.5, "low_s": 0.4, "high_s": 0.6,
        "images_per_s": 64.0, "efficiency_one_rank": 0.9, "efficiency_one_node": None, "loss_difference": None, "top1": [0.9],
        "epochs": [3], "epochs_to_target": [2], "reached": 1, "repeats": 1, "place": 1, "note": "",
        "compute_s": 0.3, "exposed_communication_s": 0.15, "data_s": 0.05,
    }  # fmt: skip
    return Compared.from_json({**line, **facts})


def in_columns(one: Compared, to_target: bool) -> dict[str, str]:
    return dict(zip(comparison_table.headings(to_target), comparison_table.cells(one, to_target), strict=True))


def test_steps_are_in_milliseconds_with_their_parts_in_columns_of_their_own() -> None:
    cells = in_columns(row(), to_target=False)
    assert (cells["step ms"], cells["95 %"]) == ("500.0", "400.0 to 600.0")
    assert [cells[part.heading] for part in OF_A_STEP] == ["300.0", "150.0", "50.0"]
    assert (cells["nodes x ranks"], cells["images/s"], cells["of 1 rank"], cells["of 1 node"]) == (
        "2 x 2",
        "64",
        "90%",
        "-",
    )


def test_a_new_part_gets_a_column_and_older_records_a_dash_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (compared, comparison_table):
        monkeypatch.setattr(module, "OF_A_STEP", (*OF_A_STEP, BUBBLE))
    cells = in_columns(row(), to_target=False)
    assert cells["bubble"] == "-" and cells["data"] == "50.0" and cells["images/s"] == "64"
    assert in_columns(row(bubble_s=0.01), to_target=False)["bubble"] == "10.0"
    assert "bubble" in " ".join(comparison_table.remarks({"measure": "step time"}))


def test_a_target_that_was_missed_is_told_in_place_of_a_time() -> None:
    cells = in_columns(
        row(value_s=None, low_s=None, high_s=None, missed=1, reached=0, epochs_to_target=[None]), to_target=True
    )
    assert cells["TTA s"] == "not reached" and cells["95 %"] == "-"
    assert (cells["reached"], cells["to target"]) == ("0 of 1", "-")


def test_a_row_comes_back_from_its_record() -> None:
    one = row()
    assert Compared.from_json(one.as_json()) == row(top1=[0.9])
    assert set(one.as_json()) >= {part.key for part in OF_A_STEP} and "parts" not in one.as_json()
