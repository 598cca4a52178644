"""A run's directory: content is read back as written, damage is reported, and a killed process does not corrupt it."""

from __future__ import annotations

import json
import os
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import record

from firetrain.config import load_config
from firetrain.errors import CannotCreate, CannotWrite, UserError
from firetrain.records import Run
from firetrain.records.parts import BESIDE_STEPS, OF_A_PREDICTED_STEP, OF_A_STEP, SPENT

CREATED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "results", load_config("quickstart"), CREATED, {"ranks": 4})


def test_a_new_run_has_its_config_its_facts_and_a_folder_for_its_first_attempt(run: Run) -> None:
    assert re.fullmatch(r"quickstart-20260102-030405-[0-9a-f]{8}", run.name)
    facts = run.facts()
    assert facts["name"] == run.name and facts["created"] == CREATED.isoformat()
    assert facts["state"] == "running" and facts["ranks"] == 4 and facts["version"] == 1
    assert facts["config"] == run.config().model_dump(mode="json")
    assert run.attempts == 1 and run.logs.is_dir() and run.log(3).name == "rank-0003.log"
    assert run.summary() == {} and run.metrics() == []


def test_two_runs_of_the_same_second_have_different_names() -> None:
    loaded = load_config("quickstart")
    assert len({Run.new_name(loaded, CREATED) for _ in range(100)}) == 100


def test_the_config_comes_back_with_the_origin_of_each_value(tmp_path: Path) -> None:
    loaded = load_config("quickstart", ["seed=7"])
    run = Run.create(tmp_path, loaded, CREATED, {})
    assert run.config() == loaded.config and run.config().seed == 7
    assert re.search(r"seed: 7 +# .*--set", run.config_path.read_text())


def test_opening_a_folder_without_a_run_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(f"{tmp_path} is not a run's directory (no run.json in it)")):
        Run.open(tmp_path)


def test_a_run_opened_by_a_relative_path_stays_found_from_another_folder(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Run.open(Path(os.path.relpath(run.path)))
    monkeypatch.chdir("/")
    assert opened.facts()["name"] == run.name


def test_a_place_that_is_a_file_is_told_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("not a folder")
    with pytest.raises(CannotCreate, match="results/quickstart.*cannot create the run's directory: Not a directory"):
        Run.create(tmp_path / "results", load_config("quickstart"), CREATED, {})


def test_a_run_that_cannot_be_written_whole_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Run, name: str, content: Any) -> None:
        raise CannotWrite(f"cannot write {name}: No space left on device")

    monkeypatch.setattr(Run, "write", full)
    with pytest.raises(CannotCreate, match="No space left"):
        Run.create(tmp_path, load_config("quickstart"), CREATED, {})
    assert list(tmp_path.iterdir()) == []


def test_attempts_are_numbered_one_after_another(run: Run) -> None:
    assert [run.begin_attempt().name for _ in range(10)][-1] == "attempt-10"
    assert run.attempts == 11 and run.attempt.name == "attempt-10"
    (run.path / "attempt-old").mkdir()  # a user's copy is not an attempt
    assert run.attempts == 11


def test_a_new_attempt_forgets_that_the_last_one_was_asked_to_stop(run: Run) -> None:
    run.stop_mark.touch()
    run.cancel_mark.touch()
    run.begin_attempt()
    assert not run.stop_mark.exists() and not run.cancel_mark.exists()


def test_a_folder_in_place_of_a_mark_is_told_before_an_attempt_begins(run: Run) -> None:
    run.stop_mark.mkdir()
    with pytest.raises(UserError, match="STOP is a folder, not a mark"):
        run.begin_attempt()
    assert run.attempts == 1


def test_the_command_that_resumes_is_quoted_for_a_shell() -> None:
    assert Run(Path("/data/my runs/a")).resume_command == "firetrain launch --resume '/data/my runs/a'"


def test_an_update_changes_what_it_names_and_keeps_the_rest(run: Run) -> None:
    before = run.facts()
    run.update(state="failed", reason="the network is down")
    assert run.facts() == {**before, "state": "failed", "reason": "the network is down"}


def row(step: int, kind: str = "step", **numbers: float | None) -> dict[str, Any]:
    return {"kind": kind, "step": step, **numbers}


def test_metrics_come_back_in_their_order_and_by_their_kind(run: Run) -> None:
    rows = [row(1, loss=2.5), row(2, loss=2.0), row(2, "evaluation", top1=0.5), row(3, loss=1.5)]
    for line in rows:
        run.append(line)
    assert run.metrics() == rows
    assert run.metrics("evaluation") == [rows[2]]
    assert list(run.lines({"step"})) == [rows[0], rows[1], rows[3]]


def test_steps_that_were_done_again_are_left_out_once(run: Run) -> None:
    """The first attempt reached step 3; its last checkpoint is from step 2, where the second attempt begins."""
    first = [row(1, loss=3.0), row(2, loss=2.0), row(3, loss=9.0)]
    again = [row(2, "attempt"), row(3, loss=1.0)]
    for line in (*first, *again):
        run.append(line)
    assert [line["loss"] for line in run.metrics("step")] == [3.0, 2.0, 1.0]
    assert len(list(run.lines())) == 5


def test_half_a_line_of_a_dying_run_is_left_out_and_what_follows_is_kept(run: Run) -> None:
    run.append(row(1, loss=2.0))
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "step": 2, "lo')
    assert run.metrics() == [row(1, loss=2.0)]
    run.append(row(1, "attempt"))
    run.append(row(2, loss=1.0))
    assert run.metrics("step") == [row(1, loss=2.0), row(2, loss=1.0)]


@pytest.mark.parametrize(
    "line",
    ["[]", '"step"', '{"kind": "step"}', '{"kind": 1, "step": 1}', '{"kind": "step", "step": 1.5}',
     '{"kind": "step", "step": 1, "step_s": null}',
     '{"kind": "step", "step": 1, "loss": "low"}', '{"kind": "step", "step": 1, "loss": {}}'],
)  # fmt: skip
def test_a_line_that_is_no_metric_is_told_with_its_number(run: Run, line: str) -> None:
    (run.path / "metrics.jsonl").write_text(f"{json.dumps(row(1, loss=2.0))}\n{line}\n")
    # only lines of the kind that is asked for are parsed, and those that begin unlike any line
    for kind in (None,) if line.startswith("{") else (None, "step"):
        with pytest.raises(UserError, match=re.escape("metrics.jsonl:2: damaged") + ".*" + re.escape(repr(line))):
            run.metrics(kind)


def damaged() -> list[tuple[str, str, str]]:
    """A file, its content, and the expected message."""
    return [
        ("run.json", "", "not JSON"),
        ("run.json", "{", "not JSON"),
        ("run.json", "\x00", "not JSON"),
        ("run.json", "[1]", "not a JSON object"),
        ("run.json", '{"state": 3}', "state is 3"),
        ("run.json", '{"config": []}', r"config is \[\]"),
        ("run.json", '{"ranks": "4"}', "ranks is '4'"),
        ("summary.json", '{"top1": "high"}', "top1 is 'high'"),
        ("summary.json", '{"top1": NaN}', "top1 is nan"),
        ("summary.json", '{"elapsed_s": null}', "elapsed_s is None"),
        ("summary.json", "[" * 100_000, "not JSON"),
    ]


@pytest.mark.parametrize(("name", "content", "told"), damaged(), ids=range(11))
def test_a_damaged_file_is_told_with_its_name_and_what_is_wrong(run: Run, name: str, content: str, told: str) -> None:
    (run.path / name).write_text(content)
    with pytest.raises(UserError, match=f"{name}: damaged, .*{told}"):
        run.facts() if name == "run.json" else run.summary()


def test_a_target_that_was_not_reached_is_no_damage(run: Run) -> None:
    run.write("summary.json", {"reached": False, "time_to_accuracy_s": None, "epochs_to_target": None})
    assert run.summary()["time_to_accuracy_s"] is None


@given(st.binary(max_size=60))
def test_whatever_bytes_a_file_holds_reading_ends_with_facts_or_a_user_s_error(content: bytes) -> None:
    run = _scratch()
    (run.path / "run.json").write_bytes(content)
    (run.path / "metrics.jsonl").write_bytes(content + b"\n")
    for read in (run.facts, run.metrics):
        try:
            assert isinstance(read(), dict | list)
        except UserError as error:
            assert "damaged" in str(error)


def _scratch() -> Run:
    path = Path("scratch")
    path.mkdir(exist_ok=True)
    return Run(path)


def test_the_reserve_has_room_for_the_facts_and_is_released(run: Run) -> None:
    run.update(warnings=["x" * 100_000])
    run.reserve()
    size_bytes = (run.path / ".reserve").stat().st_size
    assert size_bytes > (run.path / "run.json").stat().st_size
    run.reserve()  # it exists already
    assert (run.path / ".reserve").stat().st_size == size_bytes
    run.release()
    run.release()
    assert not (run.path / ".reserve").exists()


def test_a_folder_that_is_gone_is_told_when_a_line_is_appended(run: Run) -> None:
    run.path.rename(run.path.parent / "elsewhere")
    with pytest.raises(CannotWrite, match=r"metrics.jsonl: No such file or directory"):
        run.append(row(1))


def test_the_runs_that_other_tests_read_are_runs(tmp_path: Path) -> None:
    """Runs of recorded.py are read by the same code as runs of the training loop."""
    run = record(tmp_path, top1=(0.2, 0.99))
    assert len(run.metrics("evaluation")) == 2 and run.facts()["config"]["name"] == "quickstart"
    assert json.loads((run.path / "summary.json").read_text()) == run.summary()


def test_the_parts_of_a_run_s_time_have_names_keys_and_colours_of_their_own() -> None:
    for parts in (OF_A_STEP, SPENT, OF_A_PREDICTED_STEP):
        assert len({part.key for part in parts}) == len({part.name for part in parts}) == len(parts)
        assert len({part.colour for part in parts}) == len(parts)
    assert all(part.key.endswith("_s") for part in (*OF_A_STEP, *SPENT))
    assert set(BESIDE_STEPS) < set(SPENT) and not set(OF_A_STEP) & set(SPENT)
