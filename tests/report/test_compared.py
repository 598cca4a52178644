"""Rows of a comparison: intervals, places, efficiency, targets that were missed."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

import pytest
from recorded import record

from firetrain.records.parts import OF_A_STEP
from firetrain.report.compared import Compared, _interval, _to_target, with_efficiency, with_places
from firetrain.report.comparison_table import Columns, cells, text_table
from firetrain.report.history import find, read_all
from firetrain.report.report import Report


def row(name: str, low: float, value: float, high: float, **facts: Any) -> Compared:
    rest = dict.fromkeys(Compared.__dataclass_fields__) | {
        "note": "",
        "parts": {part.key: None for part in OF_A_STEP},
        "top1": (),
        "epochs": (),
        "epochs_to_target": (),
        "reached": 0,
        "repeats": 3,
    }
    rest |= {"nodes": 2, "ranks": 2, "strategy": "data-parallel"}
    return Compared(
        **{**rest, "config": "c", "reduction": name, "value_s": value, "low_s": low, "high_s": high, **facts}
    )


def test_reductions_whose_intervals_overlap_share_a_place() -> None:
    rows = [
        row("a", 1.0, 1.1, 1.2),
        row("b", 1.1, 1.3, 1.5),
        row("c", 1.4, 1.6, 1.8),
        row("d", 0.1, 0.2, 0.3, loss_difference=0.1),
    ]
    assert [found.place for found in with_places(rows)] == [1, 1, 2, None]


@pytest.mark.parametrize(
    ("times", "told", "interval"),
    [
        ((35.0, 30.0, None), "35.0", "30.0 or more"),
        ((35.0, None, None), "not reached", "-"),
        ((None,), "not reached", "-"),
        ((35.0,), "35.0", "-"),
        ((), "-", "-"),
    ],
)
def test_a_comparison_and_the_report_tell_the_same_of_runs_that_missed(
    times: tuple[float | None, ...], told: str, interval: str, tmp_path: Path
) -> None:
    """A missed target counts as infinite in both."""
    value, low, high = _to_target(times)
    missed = times.count(None)
    found = row("ring", low, value, high, missed=missed, reached=len(times) - missed)  # type: ignore[arg-type]
    columns = Columns(to_target=True)
    texts = dict(zip(columns.headings, cells(found, columns), strict=True))
    assert (texts["TTA s"], texts["95 %"], texts["reached"]) == (told, interval, f"{len(times) - missed} of 3")
    kept = Compared.from_json(json.loads(json.dumps(found.as_json(), allow_nan=False)))
    assert cells(kept, columns) == cells(found, columns), "also as comparison.json has it"
    if times:
        for seed, time in enumerate(times):
            record(tmp_path, top1=(0.98,) if time else (0.5,), epoch_s=(time or 50.0) - 3.0, seed=seed)
        histories, _ = read_all(find((str(tmp_path),), tmp_path))
        (line,) = Report.of(histories, (), "mlperf", None, olympic=False).main.text_table().rows
        texts = dict(
            zip(Report.of(histories, (), "mlperf", None, olympic=False).main.text_table().headings, line, strict=True)
        )
        assert (texts["time-to-accuracy s"], texts["95 %"]) == (told, interval)


def test_single_seeds_are_not_ranked_against_each_other() -> None:
    """Nothing is known of how far another seed would have been from them."""
    assert _to_target([35.0]) == (35.0, None, None) and _interval([[2.0]]) == (2.0, None, None)
    rows = [row("a", None, 30.0, None), row("b", None, 35.0, None), row("c", 31.0, 32.0, 33.0)]  # type: ignore[arg-type]
    assert [found.place for found in with_places(rows)] == [None, None, 1]


def test_what_was_not_reached_has_no_place() -> None:
    rows = [row("a", 1.0, 1.1, 1.2), row("b", 2.0, inf, inf, missed=2), row("c", 3.0, 4.0, inf, missed=1)]
    assert [found.place for found in with_places(rows)] == [1, None, 2]


def test_efficiency_is_by_images_per_rank_and_per_node() -> None:
    rows = [
        row("one rank", 1, 1, 1, nodes=1, ranks=1, images_per_s=100.0),
        row("ring", 1, 1, 1, nodes=1, ranks=2, images_per_s=180.0),
        row("ring", 1, 1, 1, nodes=4, ranks=8, images_per_s=480.0),
    ]
    last = with_efficiency(rows)[-1]
    assert last.efficiency_one_rank == pytest.approx(480 / 8 / 100) and last.efficiency_one_node == pytest.approx(
        480 / 4 / 180
    )


def test_intervals_hold_the_spread_between_parts() -> None:
    """Steps within a trial agree but trials differ, so the interval must reflect the difference between trials."""
    value, low, high = _interval([[1.0] * 50, [2.0] * 50, [3.0] * 50])
    assert (value, low, high) == (2.0, 1.0, 3.0)
    assert _interval([]) == (None, None, None)


def test_cells_and_headings_agree() -> None:
    for measure in ("step time", "time-to-accuracy"):
        shown = text_table({"measure": measure, "rows": [row("a", 1.0, 1.1, 1.2).as_json()]})
        assert [len(shown.headings)] * len(shown.rows) == [len(line) for line in shown.rows]
        assert shown.markdown().count("\n") == 2 and shown.csv().count("\n") == 1
