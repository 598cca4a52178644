"""Setting up a run says what is about to be trained."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path

from ranks import on_ranks
from trained import create

from firetrain.config import load_config
from firetrain.records import Run
from firetrain.training.setup import set_up
from firetrain.transport.transport import Transport


def said(transport: Transport, folder: str, overrides: list[str]) -> list[str]:
    loaded = load_config("squeezenet-digits", overrides)
    run = Run(Path(transport.broadcast_object(create(folder, loaded) if transport.rank == 0 else None)))
    with redirect_stdout(io.StringIO()) as output:
        set_up(loaded.config, transport, run).close()
    return output.getvalue().splitlines()


def test_rank_0_says_what_is_trained_on_what_and_by_which_rule(tmp_path: Path) -> None:
    first, second = on_ranks(2, said, str(tmp_path), ["reduction.name=ring"])
    model, ranks, rate = first
    assert model == "squeezenet1_1, 727,626 parameters, on digits: 1,437 training and 360 test images, 10 classes"
    assert "over gloo, reduction ring" in ranks and rate.startswith("learning rate 0.005")
    assert second == []


def test_settings_that_change_nothing_on_a_cpu_are_said(tmp_path: Path) -> None:
    (lines,) = on_ranks(1, said, str(tmp_path), ["precision=tf32", "deterministic=true"])
    assert [line.split(" ")[:2] for line in lines[3:]] == [["note:", "precision"], ["note:", "deterministic"]]
