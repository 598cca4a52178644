"""A topology of another package is listed, verified, drawn and used in training: the example of CONTRIBUTING.md, as shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", GUIDE, re.DOTALL))
COMMANDS = re.search(r"<!-- commands -->\n```sh\n(.*?)```", GUIDE, re.DOTALL)[1].splitlines()  # type: ignore[index]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a shell in which the package is installed."""
    source, site = tmp_path_factory.mktemp("chain"), tmp_path_factory.mktemp("site")
    for name, text in FILES.items():
        (source / name).write_text(text)
    (source / "setup.py").write_text("import setuptools\nsetuptools.setup()\n")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(site),
    ]
    subprocess.run([*command, str(source)], check=True, capture_output=True)
    return {**os.environ, "PYTHONPATH": str(site)}


def run(environment: dict[str, str], cwd: Path, command: str) -> str:
    words = [sys.executable, "-m", *command.split()]
    done = subprocess.run(words, env=environment, cwd=cwd, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout


EXPECTED = {
    "list": "Sums travel down from the last rank to the first, the result travels back up. [firetrain-chain]",
    "check": "chain: correct for all",
    "show": "chain, 4 ranks: 6 rounds, 6 transfers",
    "launch": "done: top-1",
}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command.split()[1:3]))
def test_the_example_works_as_shown(environment: dict[str, str], tmp_path: Path, command: str) -> None:
    (expected,) = [told for word, told in EXPECTED.items() if word in command.split()]
    out = run(environment, tmp_path, command)
    assert expected in out or (expected == "done: top-1" and "not reached: top-1" in out)


def test_the_example_shows_every_step() -> None:
    assert set(FILES) == {"firetrain_chain.py", "setup.cfg"} and len(COMMANDS) == len(EXPECTED)
