"""The screen that shows a running run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded import record

from firetrain.config import load_config
from firetrain.report.screen import to_the_end_s, to_the_target_s


def rows(top1: list[float], epoch_s: float = 10.0) -> list[dict[str, Any]]:
    return [{"epoch": n, "top1": share, "elapsed_s": n * epoch_s} for n, share in enumerate(top1, 1)]


def test_the_time_left_is_that_of_the_epochs_left() -> None:
    target = load_config("quickstart", ["target.max_epochs=20"]).config.target
    assert to_the_end_s(target, rows([0.1, 0.2, 0.3, 0.4, 0.5])) == 150
    assert to_the_end_s(target, []) is None


def test_the_target_is_foreseen_where_the_errors_fall_steadily() -> None:
    target = load_config("quickstart", ["target.max_epochs=50", "target.top1=0.99"]).config.target
    # the error halves with every epoch, so 2^-7 < 1 % is first reached after the seventh
    steady = [1 - 0.5**epoch for epoch in range(1, 6)]
    assert to_the_target_s(target, rows(steady)) == pytest.approx(10 * (6.64386 - 5), rel=1e-4)
    assert to_the_target_s(target, rows([0.5, 0.5, 0.5, 0.5, 0.5])) is None, "no trend"
    assert to_the_target_s(target, rows([0.5, 0.995])) == 0.0
    slow = load_config("quickstart", ["target.max_epochs=6", "target.top1=0.99"]).config.target
    assert to_the_target_s(slow, rows(steady)) is None, "the epochs end before"


def test_without_a_terminal_the_screen_is_printed_once(tmp_path: Path, firetrain: Callable[..., Any]) -> None:
    run = record(tmp_path / "results", directory="one")
    run.config_path.write_text(load_config("quickstart").annotated())
    shown = firetrain("watch", "results/one").stdout
    for words in (
        "one: completed",
        "top-1 accuracy: 98.00% after 3 epochs, target 97.00%",
        "loss: ",
        "images/s",
        "reached",
    ):
        assert words in shown, shown
    # on 80 columns the line is wrapped
    assert "compute 50% · exposed communication 25% · waiting for data 25%" in " ".join(shown.split())
    assert "to the last epoch" not in shown, "it has ended"
    wrong = firetrain("watch", "results")
    assert wrong.returncode == 2 and "not a run's directory" in wrong.stderr
