"""The time of a comparison is estimated from earlier runs of the same configs, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recorded import record

from firetrain.config import load_config
from firetrain.config.comparison import load_comparison
from firetrain.launch.estimate import estimate_s
from firetrain.launch.trials import Allocation, allocations_of

# the steps of a trial: those that are timed, and five before them
TIMED, STEPS = 20, 25


@pytest.fixture
def allocations(tmp_path: Path) -> list[Allocation]:
    """Two nodes, and one node with one rank: of each reduction three trials."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nconfigs: [quickstart]\nreductions: [ring, tree]\nnodes: [1, 2]\nranks_per_node: [1]\n"
        f"repeats: 3\nsteps: {TIMED}\n"
    )
    return allocations_of(load_comparison(str(path), {}), tmp_path / "comparison")


def earlier(folder: Path, ranks: int, step_s: float) -> None:
    """An earlier run of the same config on `ranks` ranks."""
    run = record(folder, "quickstart", f"cluster.ranks_per_node={ranks}", seed=ranks)
    facts = run.summary() | {"world_size": ranks, "steps": 100, "elapsed_s": 100 * step_s}
    (run.path / "summary.json").write_text(json.dumps(facts))
    (run.path / "config.yaml").write_text(load_config("quickstart").annotated())


def trials(allocations: list[Allocation], ranks: int) -> int:
    return sum(len(one.trials) for one in allocations if one.world.size == ranks)


def test_without_earlier_runs_nothing_is_said(allocations: list[Allocation], tmp_path: Path) -> None:
    assert estimate_s(allocations, tmp_path / "nowhere") is None
    (tmp_path / "results").mkdir()
    assert estimate_s(allocations, tmp_path / "results") is None


def test_steps_take_as_long_as_in_the_run_with_the_nearest_number_of_ranks(
    allocations: list[Allocation], tmp_path: Path
) -> None:
    earlier(tmp_path / "results", 1, 0.5)
    earlier(tmp_path / "results", 4, 2.0)
    found = estimate_s(allocations, tmp_path / "results")
    assert found is not None and trials(allocations, 1) and trials(allocations, 2)
    # one and two ranks are both nearest to the run on one
    assert found == (pytest.approx(0.5 * STEPS * (trials(allocations, 1) + trials(allocations, 2))), 2)
    earlier(tmp_path / "results", 2, 1.0)
    expected_s = STEPS * (0.5 * trials(allocations, 1) + 1.0 * trials(allocations, 2))
    assert estimate_s(allocations, tmp_path / "results") == (pytest.approx(expected_s), 3)


def test_parts_that_are_complete_take_no_more_time(allocations: list[Allocation], tmp_path: Path) -> None:
    earlier(tmp_path / "results", 1, 0.5)
    whole = estimate_s(allocations, tmp_path / "results")
    done = allocations[-1].trials[0].path
    done.mkdir(parents=True)
    (done / "summary.json").write_text("{}")
    rest = estimate_s(allocations, tmp_path / "results")
    assert whole is not None and rest is not None and whole[0] - rest[0] == pytest.approx(0.5 * STEPS)


@pytest.mark.parametrize("damage", ["", "{", '{"steps": 0, "world_size": 1, "elapsed_s": 1}', '{"steps": 3}'])
def test_damaged_runs_are_left_out(allocations: list[Allocation], tmp_path: Path, damage: str) -> None:
    earlier(tmp_path / "results", 1, 0.5)
    found = estimate_s(allocations, tmp_path / "results")
    spoilt = record(tmp_path / "results", "quickstart", seed=9)
    (spoilt.path / "summary.json").write_text(damage)
    assert estimate_s(allocations, tmp_path / "results") == found


def test_runs_of_another_config_say_nothing(allocations: list[Allocation], tmp_path: Path) -> None:
    record(tmp_path / "results", "squeezenet-digits")
    assert estimate_s(allocations, tmp_path / "results") is None
