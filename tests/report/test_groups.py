"""Runs are grouped by their settings, labelled by their differences, and compared with a correction for multiple tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recorded import record

from firetrain.errors import UserError
from firetrain.report.against import compare, differences
from firetrain.report.clocks import CLOCKS
from firetrain.report.groups import find_baseline, group
from firetrain.report.history import History, find, read, read_all

CLOCK = CLOCKS["mlperf"]


def histories(folder: Path) -> list[History]:
    found, left_out = read_all(find([str(folder)], folder))
    assert not left_out
    return found


def test_seeds_and_places_of_data_make_no_groups_and_everything_else_does(tmp_path: Path) -> None:
    for seed in (3, 1, 2):
        record(tmp_path, seed=seed)
    record(tmp_path, "quickstart", "reduction.name=ring")
    record(tmp_path, machine={"processor": "arm"})
    record(tmp_path, site="testbed")
    found = group(histories(tmp_path))
    assert sorted(len(one.runs) for one in found) == [1, 1, 1, 3]
    (seeds,) = [one for one in found if len(one.runs) == 3]
    assert [one.config.seed for one in seeds.runs] == [1, 2, 3]


def test_labels_name_the_differences_once(tmp_path: Path) -> None:
    record(tmp_path)
    record(tmp_path, "quickstart", "reduction.name=ring")
    record(tmp_path, "quickstart", "cluster.nodes=2", "learning_rate.base=0.5")
    record(tmp_path, "quickstart", "optimizer.momentum=0.5", arm="slow")
    labels = {one.label for one in group(histories(tmp_path))}
    assert {"quickstart", "quickstart reduction=ring", "quickstart slow"} <= labels
    (nodes,) = [label for label in labels if "nodes=2" in label]
    assert "learning_rate.base=0.5" in nodes and "ranks=" not in nodes  # the number of ranks follows from the nodes


def test_a_baseline_is_named_by_its_label(tmp_path: Path) -> None:
    record(tmp_path)
    record(tmp_path, "quickstart", "reduction.name=ring")
    groups = group(histories(tmp_path))
    assert find_baseline(groups, None) is groups[0]
    assert find_baseline(groups, "quickstart reduction=ring") is groups[1]
    with pytest.raises(UserError, match="unknown baseline 'quickstart ring', did you mean quickstart"):
        find_baseline(groups, "quickstart ring")


def test_p_values_are_corrected_for_the_number_of_groups(tmp_path: Path) -> None:
    """Four runs in each group, completely separated, have p = 2/70; Holm multiplies the first of three by three."""
    for number, (name, seconds) in enumerate((("tree", 10.0), ("ring", 5.0), ("direct", 2.0), ("torus", 1.0))):
        for seed in range(4):
            record(
                tmp_path, "quickstart", f"reduction.name={name}", seed=10 * number + seed, epoch_s=seconds + seed / 100
            )
    groups = group(histories(tmp_path))
    against = compare(groups, find_baseline(groups, "quickstart"), CLOCK)
    assert [one.p for one in against] == pytest.approx([3 * 2 / 70] * 3)
    assert all(one.least_p == pytest.approx(3 * 2 / 70) for one in against)
    (line,) = differences(against)
    assert (
        line.startswith("no significant difference from quickstart") and "too few runs for significance at 0.05" in line
    )
    alone = compare([groups[0], groups[1]], groups[0], CLOCK)
    assert alone[0].p == pytest.approx(2 / 70) and "times as fast as quickstart (p = 0.029" in differences(alone)[0]


def test_efficiency_is_the_speedup_by_rank(tmp_path: Path) -> None:
    for seed in (1, 2):
        record(tmp_path, seed=seed, epoch_s=8.0)
        record(tmp_path, "quickstart", "cluster.nodes=2", seed=seed, epoch_s=4.0)
    groups = group(histories(tmp_path))
    (one,) = compare(groups, groups[0], CLOCK)
    assert one.speedup and one.efficiency == pytest.approx(one.speedup.value * 4 / 8)


def test_without_a_target_there_is_no_time_to_it(tmp_path: Path) -> None:
    record(tmp_path, "quickstart", "target.top1=null")
    (one,) = group(histories(tmp_path))
    assert one.time(CLOCK) is None and one.middle_time(CLOCK) is None and one.reached == []
    assert one.middle("images_per_s") and one.middle("no_such_value") is None


@pytest.mark.parametrize(
    ("facts", "told"),
    [({"state": None}, "damaged"), ({"version": 99}, "run.json has version 99, but this firetrain reads version 1"),
     ({"config": {"name": "x"}}, "damaged"), ({"created": 5}, "damaged")],
)  # fmt: skip
def test_a_run_that_cannot_be_read_is_told_with_the_reason(tmp_path: Path, facts: dict[str, object], told: str) -> None:
    run = record(tmp_path)
    good = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps({**good, **facts}))
    with pytest.raises(UserError, match=told):
        read(run)
    found, left_out = read_all([run])
    assert not found and str(run.path) in left_out[0]
