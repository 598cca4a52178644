"""What a run says: once, on rank 0, and without ending because it cannot be said."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from trained import create

from firetrain.cluster import Identity, SystemClock, World
from firetrain.config import load_config
from firetrain.records import Run
from firetrain.training.ledger import Ledger
from firetrain.training.log import Log
from firetrain.transport.transport import Transport


@pytest.fixture
def record(tmp_path: Path) -> Run:
    return Run(Path(create(str(tmp_path), load_config("squeezenet-digits"))))


def log_of(record: Run, rank: int) -> Log:
    import torch

    transport = Transport("gloo", Identity("none", rank, 2), World.even(1, 2), torch.device("cpu"), 60.0)
    return Log(transport, record, Ledger(record, transport, SystemClock()))


def test_rank_0_speaks_for_all(record: Run) -> None:
    for rank, said in ((0, "epoch 1\n"), (1, "")):
        with redirect_stdout(io.StringIO()) as output:
            log_of(record, rank).say("epoch 1")
        assert output.getvalue() == said


def test_warnings_are_printed_and_kept_in_the_record(record: Run) -> None:
    with redirect_stdout(io.StringIO()) as output:
        for rank in (1, 0):
            log_of(record, rank).warn("no progress")
        log_of(record, 0).warn("still none")
    assert output.getvalue() == "warning: no progress\nwarning: still none\n"
    assert record.facts()["warnings"] == ["no progress", "still none"]


def test_output_that_cannot_be_written_does_not_end_the_training(record: Run) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    with redirect_stdout(Full()):
        log_of(record, 0).say("epoch 1")
        log_of(record, 0).warn("no progress")
    assert record.facts()["warnings"] == ["no progress"]
