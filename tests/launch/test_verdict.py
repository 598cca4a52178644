"""The verdict on an attempt: which rank failed first, and whether to requeue."""

from __future__ import annotations

from pathlib import Path

import pytest

from firetrain.launch.verdict import endings, first_failure, in_words, judge
from firetrain.records import Run

Ends = list[tuple[float, int, int]]  # seconds, rank, exit code


def attempt(folder: Path, ends: Ends) -> Run:
    run = Run(folder)
    (folder / "run.json").write_text('{"state": "running"}')
    (run.attempt / "ranks").mkdir(parents=True)
    for at_s, rank, code in ends:
        (run.attempt / "ranks" / f"{rank:04d}.exit").write_text(f"{at_s} {rank} node{rank} {code}\n")
    return run


@pytest.mark.parametrize(
    ("ends", "exit_code", "says"),
    [
        ([(1, 1, 7), (2, 0, 69)], 7, "first failure: rank 1 on node1: exit code 7"),
        # clocks differ, but a rank that lost a peer or was terminated is not the one that failed first
        ([(1, 0, 69), (2, 1, 7)], 7, "rank 1 on node1: exit code 7"),
        ([(1, 0, 143), (2, 1, 137)], 137, "rank 1 on node1: killed by signal 9 (SIGKILL), as the kernel does"),
        ([(1, 0, 69)], 69, "rank 1 hung (no exit record, node responds); rank 0 on node0: exit code 69"),
        ([(1, 1, 0), (2, 0, 69)], 70, "rank 1 on node1: exit code 0 before the run was complete"),
        ([(1, 0, 139), (1, 1, 134)], 139, "killed by signal 11 (SIGSEGV)"),
        ([], 1, "only 0 of 2 ranks reported their exit; launcher: exit code 1"),
        ([(1, 0, 0)], 1, "only 1 of 2 ranks reported their exit"),
    ],
)
def test_the_rank_that_began_it_is_named(tmp_path: Path, ends: Ends, exit_code: int, says: str) -> None:
    verdict = judge(attempt(tmp_path, ends), 2, 1, "", "", 3)
    assert verdict.exit_code == exit_code and says in verdict.why


@pytest.mark.parametrize("ends", [[(1, 0, 69)], []], ids=["one lost its peer", "nobody could say anything"])
@pytest.mark.parametrize(
    ("left", "exit_code", "says"), [(1, None, "node fire2 is lost; requeued"), (0, 75, "fire2 is lost; not requeued")]
)  # fmt: skip
def test_a_job_whose_node_slurm_gives_up_goes_on_elsewhere(
    tmp_path: Path, ends: Ends, left: int, exit_code: int | None, says: str
) -> None:
    verdict = judge(attempt(tmp_path, ends), 2, 1, "", "", left, lambda: ["fire2"])
    assert verdict.exit_code == exit_code and says in verdict.why


def test_slurm_is_not_asked_where_every_rank_has_told_its_end(tmp_path: Path) -> None:
    def asked() -> list[str]:
        raise AssertionError("asked")

    assert judge(attempt(tmp_path, [(1, 1, 7), (2, 0, 69)]), 2, 1, "", "", 3, asked).exit_code == 7


BOTH: Ends = [(1, 0, 0), (2, 1, 0)]


@pytest.mark.parametrize(
    ("signals", "before", "left", "exit_code", "says"),
    [
        (".USR1", "", 3, None, "saved; requeued"),
        ("", "", 3, None, "saved; requeued"),  # preempted: only the ranks got the signal
        (".USR1.TERM", "", 3, 75, "Slurm ended the job"),
        (".USR1", "step-00000010-00000000.pt", 3, 75, "no step completed"),
        (".USR1", "", 0, 75, "not requeued (to resume: firetrain launch --resume "),
    ],
)
def test_a_run_that_was_stopped_is_requeued_as_long_as_that_helps(
    tmp_path: Path, signals: str, before: str, left: int, exit_code: int | None, says: str
) -> None:
    run = attempt(tmp_path, BOTH)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-00000010-00000000.pt").touch()
    verdict = judge(run, 2, 0, signals, before, left)
    assert verdict.exit_code == exit_code and says in verdict.why


@pytest.mark.parametrize("ends", [[(1, 0, 143), (2, 1, 1)], [(1, 1, 143)], []], ids=["all", "one", "none"])
def test_a_command_that_was_ended_before_the_walltime_has_not_failed(tmp_path: Path, ends: Ends) -> None:
    run = attempt(tmp_path, ends)
    run.update(command=["python", "train.py"])
    (run.attempt / "logs").mkdir()
    (tmp_path / "STOP").touch()
    for requeue, saves, left, exit_code, says in (
        ("progress", False, 3, 75, "ended before the walltime; nothing newer in checkpoints/; not requeued"),
        ("always", False, 3, None, "ended before the walltime; requeued"),
        ("progress", True, 3, None, "ended before the walltime; requeued"),
        ("never", True, 0, 75, "ended before the walltime; --requeue never; not requeued"),
        ("progress", True, 0, 75, "ended before the walltime; not requeued"),
    ):
        run.update(requeue=requeue)
        if saves:
            (tmp_path / "checkpoints").mkdir(exist_ok=True)
            (tmp_path / "checkpoints" / "mine").touch()
        verdict = judge(run, 2, 143, ".USR1.LIMIT", "", left)
        assert verdict.exit_code == exit_code and says in verdict.why, (requeue, saves)
    (tmp_path / "CANCEL").touch()
    assert judge(run, 2, 143, ".USR1.LIMIT", "", 3).why == "cancelled"


def test_a_script_that_says_that_it_lost_a_peer_is_not_the_one_that_failed_first(tmp_path: Path) -> None:
    run = attempt(tmp_path, [(1, 0, 1), (2, 1, 1)])
    assert judge(run, 2, 1, "", "", 3).first.rank == 0  # type: ignore[union-attr]
    (run.attempt / "ranks" / "0000.lost").touch()
    verdict = judge(run, 2, 1, "", "", 3)
    assert verdict.exit_code == 1 and verdict.why.startswith("first failure: rank 1 on node1: exit code 1")


def test_done_and_cancelled_are_no_failures(tmp_path: Path) -> None:
    run = attempt(tmp_path, BOTH)
    (tmp_path / "CANCEL").touch()
    assert judge(run, 2, 0, "", "", 3).exit_code == 0
    run.write("summary.json", {"state": "completed"})
    assert judge(run, 2, 0, "", "", 3).why == "done"


def test_codes_in_words() -> None:
    assert in_words(3) == "exit code 3" and in_words(128 + 200) == "exit code 328"
    assert in_words(143) == "killed by signal 15 (SIGTERM)"


def test_no_records_no_failure(tmp_path: Path) -> None:
    assert endings(tmp_path) == [] and first_failure([]) is None


def test_a_worker_that_died_before_is_not_what_ended_the_run(tmp_path: Path) -> None:
    """Without workers, from rank 1 on, the others go on; here rank 0 fails later by itself."""
    run = attempt(tmp_path, [(1, 2, 137), (5, 0, 70)])
    verdict = judge(run, 3, 70, "", "", 1, expendable_from=1)
    assert verdict.exit_code == 70 and "first failure: rank 0 on node0" in verdict.why


def test_a_worker_is_named_if_the_server_only_lost_it(tmp_path: Path) -> None:
    verdict = judge(attempt(tmp_path, [(1, 1, 2), (5, 0, 69)]), 2, 69, "", "", 1, expendable_from=1)
    assert verdict.exit_code == 2 and "first failure: rank 1 on node1" in verdict.why
