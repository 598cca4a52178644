"""What another package brings is listed, checked and used in training: the examples of two pages, as they are shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
# what the commands of each page print
EXPECTED = {
    "CONTRIBUTING.md": (
        "Sums travel down from the last rank to the first, the result travels back up. [firetrain-chain]",
        "chain: correct for all",
        "chain, 4 ranks: 6 rounds, 6 transfers",
        "not reached: top-1",
    ),
    "docs/entry-points.md": (
        "306,408",
        "wide:outputs=200: correct on",
        "done: top-1",
        "done: top-1",
        "half",
    ),
}


class Page(NamedTuple):
    """The files and the commands that a page shows."""

    files: dict[str, str]
    commands: list[str]

    @classmethod
    def read(cls, name: str) -> Page:
        text = (ROOT / name).read_text()
        commands = re.search(r"<!-- commands -->\n```sh\n(.*?)```", text, re.DOTALL)
        assert commands
        return cls(
            dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", text, re.DOTALL)), commands[1].splitlines()
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder that each page's package is installed in."""
    places = {}
    for name in EXPECTED:
        source, places[name] = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
        for file, text in Page.read(name).files.items():
            (source / file).write_text(text)
        (source / "setup.py").write_text("import setuptools\nsetuptools.setup()\n")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
        subprocess.run([*command, str(places[name]), str(source)], check=True, capture_output=True)
    return places


@pytest.mark.parametrize(
    ("name", "command", "expected"),
    [
        pytest.param(name, command, expected, id=f"{name}-{' '.join(command.split()[1:3])}-{number}")
        for name, told in EXPECTED.items()
        for number, (command, expected) in enumerate(zip(Page.read(name).commands, told, strict=True))
    ],
)
def test_the_example_works_as_shown(
    installed: dict[str, Path], tmp_path: Path, name: str, command: str, expected: str
) -> None:
    for file, text in Page.read(name).files.items():
        if file.endswith(".yaml"):
            (tmp_path / file).write_text(text)
    words = [sys.executable, "-m", *command.split()]
    environment = {**os.environ, "PYTHONPATH": str(installed[name])}
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


def test_the_examples_bring_a_name_to_every_group() -> None:
    groups = set(re.findall(r"^(firetrain\.\w+) =$", (ROOT / "setup.cfg").read_text(), re.MULTILINE))
    brought = re.findall(
        r"^(firetrain\.\w+) =$", "".join(Page.read(name).files["setup.cfg"] for name in EXPECTED), re.M
    )
    assert sorted(brought) == sorted({*groups, "firetrain.models", "firetrain.datasets"})
