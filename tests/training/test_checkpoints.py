"""When a run saves checkpoints, from which one it resumes, and the messages about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import on_ranks
from recorded import record

from firetrain.config.sections.checkpoint import CheckpointSection
from firetrain.records import Run
from firetrain.training.checkpoints import Checkpoints
from firetrain.transport.transport import Transport


class Ledger:
    """The part of a ledger that checkpoints use, without a clock."""

    def __init__(self, step: int) -> None:
        self.step, self.saved = step, 0

    def state(self) -> dict[str, Any]:
        return {"step": self.step}

    def checkpoint(self, last: bool) -> Ledger:
        return self

    def writing(self) -> Ledger:
        return self

    def __enter__(self) -> None:
        self.saved += 1

    def __exit__(self, *error: object) -> None:
        pass


def section(**values: Any) -> CheckpointSection:
    return CheckpointSection.model_validate(values)


@pytest.mark.parametrize(
    ("values", "due"),
    [
        ({}, {}),
        ({"every_epochs": 2}, {(2, 20): True, (4, 40): True, (5, 50): "last"}),
        ({"every_steps": 15}, {(3, 30): True, (5, 50): "last"}),
        ({"every_epochs": 3, "every_steps": 20}, {(2, 20): True, (3, 30): True, (4, 40): True, (5, 50): "last"}),
    ],
)
def test_the_end_of_an_epoch_is_saved_as_the_config_says_and_the_end_of_the_run_if_anything_is(
    values: dict[str, int], due: dict[tuple[int, int], Any], tmp_path: Path
) -> None:
    checkpoints = Checkpoints(section(**values), record(tmp_path), None)  # type: ignore[arg-type]
    for epoch in range(1, 6):
        place = (epoch, 10 * epoch)
        assert checkpoints.due(*place, last=False) is (due.get(place) is True), place
        assert checkpoints.due(*place, last=epoch == 5) is (place in due), place


def test_steps_within_an_epoch_are_saved_only_if_asked_for(tmp_path: Path) -> None:
    every, never = (Checkpoints(section(**values), record(tmp_path, directory=name), None)  # type: ignore[arg-type]
                    for name, values in (("a", {"every_steps": 4}), ("b", {"every_epochs": 1})))  # fmt: skip
    assert [step for step in range(1, 13) if every.due_within(step)] == [4, 8, 12]
    assert not any(never.due_within(step) for step in range(1, 13))


def saved(transport: Transport, path: str) -> list[Any]:
    """Save twice after one step and once after the next; returns what another process would resume from."""
    run = Run.open(Path(path))
    checkpoints = Checkpoints(section(every_steps=1, keep=1), run, transport)
    assert checkpoints.newest() == {}
    told = checkpoints.safe() if transport.rank == 0 else ""
    ledgers = [Ledger(3), Ledger(3), Ledger(4)]
    for number, ledger in enumerate(ledgers):
        checkpoints.save(ledger, {"model": {"w": torch.full((2,), float(number))}})  # type: ignore[arg-type]
    transport.barrier()
    again = Checkpoints(section(every_steps=1), run, transport).newest()
    return [
        told,
        [ledger.saved for ledger in ledgers],
        again["clocks"],
        again["model"]["w"].tolist(),
        checkpoints.safe(),
    ]


def test_rank_0_saves_a_step_once_and_all_ranks_go_on_from_the_newest(tmp_path: Path) -> None:
    run = record(tmp_path)
    first, second = on_ranks(2, saved, str(run.path))
    assert first[0] == "there is no checkpoint yet" and first[1] == [2, 0, 2] and second[1] == [0, 0, 0]
    assert first[2:4] == second[2:4] == [{"step": 4}, [2.0, 2.0]]
    assert first[4] == "the checkpoint after step 4 is complete"
    assert [path.name[:13] for path in (run.path / "checkpoints").iterdir()] == ["step-00000004"]


def damaged(transport: Transport, path: str) -> Any:
    return Checkpoints(section(every_steps=1), Run.open(Path(path)), transport).newest().get("clocks")


def test_a_checkpoint_that_cannot_be_read_is_passed_over_by_all_ranks(tmp_path: Path) -> None:
    run = record(tmp_path)
    on_ranks(1, several_saved, str(run.path))
    newest = max((run.path / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-7])
    assert on_ranks(2, damaged, str(run.path)) == [{"step": 1}] * 2


def several_saved(transport: Transport, path: str) -> None:
    checkpoints = Checkpoints(section(every_steps=1, keep=5), Run.open(Path(path)), transport)
    for step in (1, 2):
        checkpoints.save(Ledger(step), {"model": {"w": torch.zeros(2)}})  # type: ignore[arg-type]
