"""The check for GPUs: here every part runs at toy size on the CPU, so that it works on the day when there is a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import Command

from firetrain.bench.gpu import kit
from firetrain.bench.gpu.part import PARTS


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the parts find, each once."""
    out = tmp_path_factory.mktemp("gpu") / "gpu.json"
    parts = dict(kit.run_kit(out))
    assert json.loads(out.read_text())["parts"] == parts
    return parts


def test_every_part_ends_in_time_without_an_error(found: dict[str, Any]) -> None:
    assert list(found) == list(kit.LIMITS_S) == list(PARTS)
    assert {name: part.get("error") for name, part in found.items()} == dict.fromkeys(found)
    assert sum(kit.LIMITS_S.values()) < 8 * 60


def test_the_ceilings_are_those_of_a_machine(found: dict[str, Any]) -> None:
    facts = found["facts"]
    assert 1e8 < facts["copy_bytes_per_s"] < 1e14 and 1e7 < facts["bfloat16_flop_per_s"] < 1e16
    assert facts["torch"] and facts["device"]


def test_every_reduction_is_right_in_both_wire_dtypes(found: dict[str, Any]) -> None:
    cases = found["reductions"]["cases"]
    assert {case: told for case, told in cases.items() if told != "right"} == {}
    for name in ("native", "ring", "tree", "hierarchical", "direct"):
        assert f"{name} float32" in cases and f"{name} bfloat16" in cases


def test_steps_do_not_wait_and_have_the_same_bits_again(found: dict[str, Any]) -> None:
    steps = {name: case for name, case in found["steps"].items() if isinstance(case, dict)}
    assert len(steps) == 3
    assert all(case == {"synchronisations": [], "same_bits": True} for case in steps.values()), steps


def test_speeds_and_kernels_are_found_for_the_models(found: dict[str, Any]) -> None:
    speeds = [part["images_per_s"] for part in found["throughput"].values() if isinstance(part, dict)]
    assert len(speeds) >= 3 and min(speeds) > 0
    kernels = found["kernels"]["squeezenet1_1"]
    assert kernels[0]["us"] >= kernels[-1]["us"] > 0 and "convolution" in " ".join(row["kernel"] for row in kernels)


def test_a_part_that_takes_too_long_or_fails_is_recorded_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kit, "LIMITS_S", {"steps": 0.01, "nothing": 20.0, "facts": 40.0})
    parts = dict(kit.run_kit(tmp_path / "gpu.json"))
    assert parts["steps"]["error"] == "took longer than 0.01 s"
    assert "KeyError: 'nothing'" in parts["nothing"]["error"]
    assert "error" not in parts["facts"]
    assert json.loads((tmp_path / "gpu.json").read_text())["parts"] == parts


def test_the_command_names_its_parts(firetrain: Command, tmp_path: Path) -> None:
    done = firetrain("bench", "gpu", "--parts", "facts", "--json")
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)) == ["facts"] and (tmp_path / "gpu.json").exists()
    wrong = firetrain("bench", "gpu", "--parts", "fact")
    assert wrong.returncode == 2 and "unknown part 'fact', did you mean facts?" in wrong.stderr
