"""A comparison's table follows the one list of a step's parts, also when that list grows."""

from __future__ import annotations

from typing import Any

from firetrain.records.parts import COMPUTE, DATA, EXPOSED, OF_A_STEP
from firetrain.report.compared import Compared
from firetrain.report.comparison_table import Columns, cells, remarks


def row(**facts: Any) -> Compared:
    line: dict[str, Any] = {
        "config": "c", "reduction": "ring", "nodes": 2, "ranks": 4, "value_s": 0.5, "low_s": 0.4, "high_s": 0.6,
        "images_per_s": 64.0, "efficiency_one_rank": 0.9, "efficiency_one_node": None, "loss_difference": None, "top1": [0.9],
        "epochs": [3], "epochs_to_target": [2], "reached": 1, "repeats": 1, "place": 1, "note": "",
        "compute_s": 0.3, "exposed_communication_s": 0.15, "data_s": 0.05,
    }  # fmt: skip
    return Compared.from_json({**line, **facts})


def in_columns(one: Compared, to_target: bool) -> dict[str, str]:
    columns = Columns.of([one], to_target)
    return dict(zip(columns.headings, cells(one, columns), strict=True))


def test_steps_are_in_milliseconds_with_their_parts_in_columns_of_their_own() -> None:
    found = in_columns(row(), to_target=False)
    assert (found["step ms"], found["95 %"]) == ("500.0", "400.0 to 600.0")
    assert [found[part.heading] for part in (COMPUTE, EXPOSED, DATA)] == ["300.0", "150.0", "50.0"]
    assert (found["nodes x ranks"], found["images/s"], found["of 1 rank"], found["of 1 node"]) == (
        "2 x 2",
        "64",
        "90%",
        "-",
    )


def test_parts_that_only_placements_have_get_a_column_where_a_row_has_them() -> None:
    assert not {"exchange", "bubble"} & in_columns(row(), to_target=False).keys()
    columns = Columns.of([row(), row(strategy="pipeline:stages=2", bubble_s=0.01)], to_target=False)
    plain, staged = (
        dict(zip(columns.headings, cells(one, columns), strict=True)) for one in (row(), row(bubble_s=0.01))
    )
    assert (plain["bubble"], staged["bubble"], plain["data"]) == ("-", "10.0", "50.0") and "exchange" not in plain
    told = remarks({"measure": "step time", "rows": [row(bubble_s=0.01).as_json()]})
    assert "bubble" in " ".join(told) and "exchange" not in " ".join(told)


def test_the_strategy_has_a_column_if_a_row_has_another_than_data_parallel() -> None:
    assert "strategy" not in in_columns(row(), to_target=False)
    found = in_columns(row(strategy="one-weird-trick"), to_target=False)
    assert (found["strategy"], found["reduction"]) == ("one-weird-trick", "ring")
    assert row(strategy="one-weird-trick").method == "one-weird-trick, ring" and row().method == "ring"


def test_a_target_that_was_missed_is_told_in_place_of_a_time() -> None:
    found = in_columns(
        row(value_s=None, low_s=None, high_s=None, missed=1, reached=0, epochs_to_target=[None]), to_target=True
    )
    assert found["TTA s"] == "not reached" and found["95 %"] == "-"
    assert (found["reached"], found["to target"]) == ("0 of 1", "-")


def test_a_row_comes_back_from_its_record() -> None:
    one = row()
    assert Compared.from_json(one.as_json()) == row(top1=[0.9])
    assert set(one.as_json()) >= {part.key for part in OF_A_STEP} and "parts" not in one.as_json()
