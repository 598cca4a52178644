"""All ranks stop after the same step: on a request to any of them, for a stop mark, and if rank 0 could not write."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ranks import on_ranks
from recorded import record

from firetrain.config.sections.checkpoint import CheckpointSection
from firetrain.errors import CannotWrite
from firetrain.records import Run
from firetrain.training.checkpoints import Checkpoints
from firetrain.training.stop import Stop
from firetrain.transport.transport import Transport


def stop_of(transport: Transport, path: str, failure: CannotWrite | None = None) -> Stop:
    run = Run.open(Path(path))
    ledger: Any = SimpleNamespace(step=12, failure=failure if transport.rank == 0 else None)
    checkpoints = Checkpoints(CheckpointSection.model_validate({}), run, transport)
    return Stop(run, transport, ledger, checkpoints, [run.stop_mark, run.path / "ANOTHER"])


def asked(transport: Transport, path: str, who: int) -> list[bool]:
    stop = stop_of(transport, path)
    before = stop.agreed()
    if transport.rank == who:
        stop.ask()
    return [before, stop.agreed(), stop.agreed()]


@pytest.mark.parametrize("who", [0, 2])
def test_a_request_to_any_rank_reaches_all(who: int, tmp_path: Path) -> None:
    assert on_ranks(3, asked, str(record(tmp_path).path), who) == [[False, True, True]] * 3


def marked(transport: Transport, path: str, name: str) -> list[bool]:
    stop = stop_of(transport, path)
    before = stop.agreed()
    if transport.rank == 0:
        (Path(path) / name).touch()
    transport.barrier()
    after = stop.agreed()
    stop.refuse_unwritten()  # it reports only write errors
    return [before, after]


@pytest.mark.parametrize("name", ["STOP", "ANOTHER"])
def test_any_of_the_marks_asks_for_a_stop(name: str, tmp_path: Path) -> None:
    assert on_ranks(2, marked, str(record(tmp_path).path), name) == [[False, True]] * 2


def unwritten(transport: Transport, path: str) -> list[str]:
    stop = stop_of(transport, path, CannotWrite("cannot write metrics.jsonl: No space left on device"))
    told = []
    for ask in (stop.agreed, stop.refuse_unwritten):
        with pytest.raises(CannotWrite) as error:
            ask()
        told.append(str(error.value))
    return told


def test_what_rank_0_could_not_write_ends_all_ranks_with_the_same_words(tmp_path: Path) -> None:
    run = record(tmp_path)
    found = on_ranks(3, unwritten, str(run.path))
    assert found[0] == found[1] == found[2]
    for text in found[0]:
        assert text == (
            "cannot write metrics.jsonl: No space left on device; there is no checkpoint yet. All ranks ended after step 12. "
            f"Free some space, then resume with firetrain launch --resume {run.path}"
        )
