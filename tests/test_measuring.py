"""The scripts that measured the results use commands and options that exist."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest

from firetrain.cli.main import main

RESULTS = Path(__file__).parents[1] / "results"


def accept(words: Sequence[str]) -> None:
    """Parse a command as the command line does, without running it; a usage error fails."""
    group: click.Command = main
    rest = list(words)
    while isinstance(group, click.Group):
        group = group.commands[rest.pop(0)]
    group.make_context(group.name, rest)


def commands_of_the_script() -> Iterator[list[str]]:
    text = (RESULTS / "reductions" / "measure.sh").read_text().replace("\\\n", " ")
    for line in text.splitlines():
        _, found, arguments = line.partition('"${bench[@]}" ')
        if found:
            words = shlex.split(re.sub(r"> *\S+$", "", arguments.strip()))
            yield ["bench", *(word for word in words if "[@]" not in word)]


@pytest.mark.parametrize("words", list(commands_of_the_script()), ids=" ".join)
def test_the_script_for_reductions(words: list[str]) -> None:
    accept(words)


def test_the_script_for_predictions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(RESULTS / "prediction"))
    import measure

    asked: list[str] = []

    def on_network(world: Any, *command: str) -> str:
        accept(command)
        asked.append(command[1])
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "on_network", on_network)
    for call in (
        lambda: measure.calibrate(tmp_path / "profile.json", 1.0),
        lambda: measure.measure_allreduces(measure.CALIBRATED),
        lambda: measure.measure_steps(measure.BASE, 2.0, measure.CALIBRATED),
    ):
        with pytest.raises(KeyboardInterrupt):
            call()
    assert asked == ["profile", "allreduce", "step"]
    for name in ("measure", "table", "worlds"):
        sys.modules.pop(name)
