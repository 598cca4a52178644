"""The GPU check: every check runs here at toy size on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import Command

from firetrain.bench.gpu import kit
from firetrain.bench.gpu.check import CHECKS
from firetrain.transport.device import visible_gpus


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the checks find, each once."""
    out = tmp_path_factory.mktemp("gpu") / "gpu.json"
    with pytest.MonkeyPatch.context() as patched:  # the limits are for a machine that does nothing else
        patched.setattr(kit, "LIMITS_S", {name: 5 * limit_s for name, limit_s in kit.LIMITS_S.items()})
        checks = dict(kit.run_kit(out))
    assert json.loads(out.read_text())["checks"] == checks
    return checks


def test_every_part_ends_in_time_without_an_error(found: dict[str, Any]) -> None:
    assert list(found) == list(kit.LIMITS_S) and set(CHECKS) == set(found)
    assert {name: check.get("error") for name, check in found.items()} == dict.fromkeys(found)
    assert sum(kit.LIMITS_S.values()) <= 455, (
        "with the start and the end of fourteen processes in less than eight minutes"
    )


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
    epochs = [steps.pop(f"epoch with {name}") for name in ("shift-flip", "random-resized-crop")]
    assert epochs == [{"synchronisations_of_more_steps": []}] * 2 and len(steps) == 3
    expected = {"synchronisations": [], "same_bits": True, "same_bits_resumed": True}
    assert all(case == expected for case in steps.values()), steps


def test_gradients_and_optimisers_agree_with_their_references(found: dict[str, Any]) -> None:
    gradients, optimizers = (
        {k: v for k, v in found[check].items() if k != "seconds"} for check in ("gradients", "optimizers")
    )
    assert gradients.pop("transport") == "gloo" and len(gradients) == 9 and max(gradients.values()) < 1e-5
    assert found["hook"]["late sums"] == 2.0
    assert optimizers == {"sgd": 0.0, "lars": 0.0, "lamb": 0.0}, "here the device is the CPU itself"


def test_steps_under_strategies_are_those_of_one_rank(found: dict[str, Any]) -> None:
    differences = {k: v for k, v in found["strategies"].items() if k not in ("seconds", "transport")}
    assert len(differences) == 10 and max(differences.values()) < 1e-5


def test_compiled_models_have_the_same_gradients_and_are_compiled_once(found: dict[str, Any]) -> None:
    for unit in ("model", "block"):
        case = found["compile"][unit]
        assert case["graphs"] > 0 and case["graphs_afterwards"] == 0 and case["gradient_difference"] < 1e-5
    assert found["compile"]["block"]["graphs"] > found["compile"]["model"]["graphs"]


def test_changes_inputs_and_links_are_timed(found: dict[str, Any]) -> None:
    ratios = [value for name, value in found["ablations"].items() if name not in ("training", "seconds")]
    assert len(ratios) == 10 and all(0.01 < ratio < 100 for ratio in ratios)
    assert found["lost"]["rank 0"].startswith("firetrain.errors.LostPeer: rank 0 lost rank 1 in step 1, bucket 0"), (
        found["lost"]
    )
    paths = {"kept on the device", "copied from pinned memory", "decoded from JPEG files", "decoded in another process"}
    assert paths < found["inputs"].keys()
    rows = {name: row for name, row in found["links"].items() if isinstance(row, dict)}
    assert rows["native 4096"]["ratio_to_native"] == 1.0 and all(row["wrong"] == 0 for row in rows.values())


def test_speeds_and_kernels_are_found_for_the_models(found: dict[str, Any]) -> None:
    speeds = [check["images_per_s"] for check in found["throughput"].values() if isinstance(check, dict)]
    assert len(speeds) >= 3 and min(speeds) > 0
    kernels = found["kernels"]["squeezenet_mini"]
    assert kernels[0]["us"] >= kernels[-1]["us"] > 0 and "conv" in " ".join(row["kernel"] for row in kernels)


def test_a_check_that_takes_too_long_or_fails_is_recorded_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kit, "LIMITS_S", {"steps": 0.01, "nothing": 20.0, "facts": 40.0})
    checks = dict(kit.run_kit(tmp_path / "gpu.json"))
    assert checks["steps"]["error"] == "took longer than 0.01 s"
    assert "KeyError: 'nothing'" in checks["nothing"]["error"]
    assert "error" not in checks["facts"]
    assert json.loads((tmp_path / "gpu.json").read_text())["checks"] == checks


def test_a_check_may_take_the_time_that_others_have_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "LIMITS_S", {"facts": 60.0, "steps": 0.01, "compile": 0.01})
    limits: list[float] = []

    def run(name: str, limit_s: float) -> dict[str, Any]:
        limits.append(limit_s)
        return {}

    monkeypatch.setattr(kit, "_run", run)
    list(kit.run_kit(tmp_path / "gpu.json"))
    assert limits == pytest.approx([60.0, 60.01, 60.02], abs=0.5)
    monkeypatch.setattr(kit, "_SHARES", {"steps": 0.25, "compile": 0.25})
    limits.clear()
    list(kit.run_kit(tmp_path / "gpu.json"))
    assert limits == pytest.approx([60.0, 15.01, 60.02], abs=0.5), "the last one gets everything"


def test_what_a_check_had_found_before_its_end_is_kept() -> None:
    assert kit._last('{"a": 1}\n{"a": 1, "b": 2}\n{"a": 1, "b"') == {"a": 1, "b": 2}
    assert kit._last("") == {} == kit._last('{"a"')
    assert kit._last('{"a": 1}\nNCCL INFO: channels\n\n12\n') == {"a": 1}, "libraries print between the results"


def test_the_command_names_its_checks(firetrain: Command, tmp_path: Path) -> None:
    done = firetrain("bench", "gpu", "--checks", "facts", "--json")
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)) == ["facts"] and (tmp_path / "gpu.json").exists()
    wrong = firetrain("bench", "gpu", "--checks", "fact")
    assert wrong.returncode == 2 and "unknown check 'fact', did you mean facts?" in wrong.stderr


@pytest.mark.skipif(visible_gpus() > 0, reason="this machine has a GPU")
def test_a_run_that_requires_a_gpu_starts_nothing_without_one(firetrain: Command, tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    done = firetrain("bench", "gpu", "--checks", "facts", "--require-gpu", "--out", str(out))
    assert done.returncode == 2 and "has no GPU" in done.stderr and not out.exists()
    done = firetrain("bench", "gpu", "--checks", "facts", "--out", str(out))
    assert done.returncode == 0 and "there is no GPU: everything ran on the CPU" in done.stdout
