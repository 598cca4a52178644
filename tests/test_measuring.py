"""The scripts that measured the results use commands and options that exist; published predictions are those of the code."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from command import Command

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


@pytest.mark.parametrize("model", ["alexnet", "googlenet", "squeezenet"])
def test_published_predictions_of_placements_are_those_of_the_search(
    model: str, firetrain: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the cost model has changed since its errors were measured: truth.py measures them again."""
    monkeypatch.syspath_prepend(str(RESULTS / "search"))
    import truth

    published = {name: case for name, case in json.loads(truth.FILE.read_text()).items() if name.startswith(model)}
    assert set(published) == {name for name in truth.CASES if name.startswith(model)}
    for name, case in published.items():
        _, nodes, rate, batch = truth.CASES[name]
        words = truth.of_case(model, batch, f"{case['searched']['bucket_bytes'] / 2**20}")
        profile = ["--profile", str(RESULTS / "search" / f"profile-{model}.json")]
        on_nodes = ["--ranks", str(nodes), "--ranks-per-node", "1", truth.changes(rate, case["pace"])]
        done = firetrain("search", *words, *profile, *on_nodes, "--margin", "0", "--json")
        (found,) = json.loads(done.stdout)
        assert found["known_s"] == case["searched"]["known_s"], name
        assert found["recommended_s"] == case["steps"][case["found"]]["predicted_s"], name
    sys.modules.pop("truth")
