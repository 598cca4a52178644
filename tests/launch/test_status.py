"""The state of a run without a job, as text and as one word, from its record, its lock and its ranks' exit records."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from command import Command
from recorded import record

from firetrain.errors import UserError
from firetrain.launch.cancel import cancel
from firetrain.launch.status import state_of
from firetrain.launch.wait import wait_for
from firetrain.records import Run
from firetrain.records.lock import held
from firetrain.report.history import read

HERE: dict[str, Any] = {"machine": {"host": socket.gethostname()}}


def unfinished(folder: Path, state: str = "running", **facts: Any) -> Run:
    """A run on this machine whose summary has not been written yet."""
    run = record(folder, state=state, **{**HERE, **facts})
    run.begin_attempt()
    return run


def ended(run: Run, rank: int, code: int, at_s: float = 1.0, log: str = "") -> None:
    """Write a rank's exit record, as the launcher does."""
    (run.attempt / "ranks").mkdir(exist_ok=True)
    (run.attempt / "ranks" / f"{rank}.exit").write_text(f"{at_s} {rank} fire1 {code}\n")
    run.log(rank).write_text(log)


def test_a_run_with_a_summary_is_complete(tmp_path: Path) -> None:
    state = state_of(record(tmp_path))
    assert state.word == "completed" and state.ended and not state.failure


def test_a_run_whose_launcher_lives_is_running_at_its_newest_step(tmp_path: Path) -> None:
    run = unfinished(tmp_path)
    with held(run):
        state = state_of(run)
    last = run.metrics("step")[-1]
    assert state.word == "running" and not state.ended
    assert state.text == f"running: attempt 0, step {last['step']}, loss {last['loss']:.4f}"


@pytest.mark.parametrize(
    "content", ["{}", "[]", "[" * 100_000, '{"asked": null, "numbers": [7], "jobs": []}', "no JSON"]
)
def test_a_damaged_answer_of_slurm_is_asked_for_again(content: str, tmp_path: Path) -> None:
    """Nothing answers here, because the variable names no cluster."""
    run = unfinished(tmp_path, state="submitted", jobs=[7])
    (run.path / "slurm.json").write_text(content)
    assert state_of(run, 60.0).text.startswith("submitted when last seen")
    whole = {"asked": time.time(), "numbers": [7], "jobs": [{"id": 7, "state": "RUNNING"}]}
    (run.path / "slurm.json").write_text(json.dumps(whole))
    assert state_of(run, 60.0).word == "running", "this answer is new enough"


def test_a_failed_job_without_a_word_is_told_also_if_it_was_not_the_first(tmp_path: Path) -> None:
    """Its script never began an attempt, so that the newest one is that of an older job."""
    run = unfinished(tmp_path, state="submitted", jobs=[7])
    (run.attempt / "job").write_text("6\n")
    (run.attempt / "verdict.txt").write_text("saved\n")
    failed = {"asked": time.time(), "numbers": [6, 7], "jobs": [{"id": 7, "state": "FAILED"}]}
    (run.path / "slurm.json").write_text(json.dumps(failed))
    assert state_of(run, 60.0).failure == f"job 7 has written no log: do its nodes see the folder {run.path}?"
    (run.path / "job-7.log").touch()
    assert "job 7 ended before its ranks were started, without a word" in state_of(run, 60.0).failure
    (run.attempt / "job").write_text("7\n")
    assert not state_of(run, 60.0).failure, "its end is told by the verdict"


def test_a_run_that_has_not_logged_a_step_says_so(tmp_path: Path) -> None:
    run = unfinished(tmp_path)
    (run.path / "metrics.jsonl").unlink()
    with held(run):
        assert state_of(run).text == "running: attempt 0, no step completed yet"


def test_a_run_whose_launcher_was_killed_is_cut_off_and_the_way_on_is_told(tmp_path: Path) -> None:
    run = unfinished(tmp_path)
    with held(run):
        pass
    state = state_of(run)
    assert state.word == "failed" and state.ended
    assert state.text.startswith("interrupted: its launcher and ranks are no longer running; to resume: ")
    assert run.name in state.text
    assert read(run).state == "interrupted"  # in a report, too


def test_a_run_of_another_machine_is_left_as_it_says(tmp_path: Path) -> None:
    run = unfinished(tmp_path, machine={"host": "elsewhere"})
    with held(run):
        pass
    assert state_of(run).word == "running"


def test_a_stopped_run_tells_how_to_go_on_and_a_failed_one_its_reason(tmp_path: Path) -> None:
    assert "stopped; to resume: firetrain launch --resume " in state_of(unfinished(tmp_path, "stopped")).text
    failed = state_of(unfinished(tmp_path, "failed", reason="diverged at step 3"))
    assert failed.text == "failed: diverged at step 3" and failed.ended


def test_a_failed_run_with_a_checkpoint_tells_how_to_go_on_once(tmp_path: Path) -> None:
    texts = []
    for reason in ("rank 1 failed first", "diverged at step 3", "no space left: resume with firetrain launch --resume"):
        run = unfinished(tmp_path / reason[:4], "failed", reason=reason)
        (run.path / "checkpoints").mkdir(exist_ok=True)
        (run.path / "checkpoints" / "step-00000003-00000000.pt").touch()
        texts.append(state_of(run).text)
    assert [text.count("to resume: firetrain launch --resume ") for text in texts] == [1, 0, 0]


def test_the_rank_that_failed_first_is_shown_with_the_end_of_its_log(tmp_path: Path) -> None:
    run = unfinished(tmp_path, "failed", reason="a rank failed")
    ended(run, 0, 69, at_s=1.0, log="lost a peer\n")
    ended(run, 1, 137, at_s=2.0, log="".join(f"line {number}\n" for number in range(40)))
    failure = state_of(run).failure
    assert failure.startswith("first failure: rank 1 on fire1: killed by signal 9 (SIGKILL)")
    assert "  | line 39" in failure and "  | line 28" in failure and "line 27" not in failure


def test_a_rank_that_failed_without_a_word_is_shown_as_such(tmp_path: Path) -> None:
    run = unfinished(tmp_path, "failed")
    ended(run, 0, 1)
    assert state_of(run).failure.endswith("  | (nothing)")


def test_cancelling_a_run_here_asks_its_ranks_to_stop(tmp_path: Path) -> None:
    run = unfinished(tmp_path)
    with held(run):
        told = cancel(run, now=False).text
        assert run.stop_mark.exists() and "the ranks will save a checkpoint and exit within a few steps" in told
        with pytest.raises(UserError, match="--now is only for Slurm jobs"):
            cancel(run, now=True)


def test_cancelling_what_has_ended_changes_nothing(tmp_path: Path) -> None:
    run = record(tmp_path)
    before = run.facts()
    assert cancel(run, now=True).text == f"{run.name} was already completed"
    assert run.facts() == before and not run.stop_mark.exists() and not run.cancel_mark.exists()


def test_waiting_returns_at_the_end_with_every_line_of_the_log_once(tmp_path: Path) -> None:
    run = unfinished(tmp_path, "failed", reason="diverged")
    run.log(0).write_text("first\nsecond\n")
    lines: list[str] = []
    assert wait_for(run, poll_every_s=0.0, show=lines.append) is False
    assert lines == ["first", "second"]
    assert wait_for(record(tmp_path), poll_every_s=0.0) is True


def test_the_command_tells_the_state_in_words_and_as_json(tmp_path: Path, firetrain: Command) -> None:
    record(tmp_path / "results", directory="a-complete-one")
    unfinished(tmp_path / "results", "stopped", directory="a-stopped-one")
    complete = firetrain("status", "results/a-complete-one")
    assert complete.returncode == 0 and "completed" in complete.stdout, complete.stderr
    assert json.loads(firetrain("status", "results/a-stopped-one", "--json").stdout)["word"] == "stopped"
    missing = firetrain("status", "results")
    assert missing.returncode == 2 and "results is not a run's directory" in missing.stderr
