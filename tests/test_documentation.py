"""The pages of the documentation: their commands, links and lines, and the map of the layers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import click
import pytest

from firetrain.cli.main import main

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")))
RESULTS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "results").glob("*/README.md"))
BEFORE = r"(?:[A-Z_]+=\S+ |srun |python tests/network\.py .*?)?"
COMMAND = re.compile(rf"^ {{4,}}{BEFORE}firetrain ((?:.*\\\n)*.*)$|`{BEFORE}firetrain ([a-z][^`]*)`", re.MULTILINE)


def commands() -> Iterator[tuple[str, str]]:
    """(page, command) of the commands that no test runs because they need a cluster or a run: indented, or within a line."""
    for page in (*PAGES, "CONTRIBUTING.md", *RESULTS):
        for indented, inline in COMMAND.findall((ROOT / page).read_text()):
            yield page, (indented or inline).replace("\\\n", " ").partition("  #")[0].partition(" | ")[0]


def unknown_words(text: str) -> Iterator[str]:
    """The commands and options in a command line that firetrain does not have."""
    command: click.Command = main
    for word in shlex.split(text.replace("\n", " ")):
        if word == "--":  # a command of the user's own follows
            return
        if isinstance(command, click.Group):
            if word not in command.commands:
                yield word
                return
            command = command.commands[word]
        elif re.match(r"--?[a-z]", word):
            known = {name for parameter in command.params for name in parameter.opts}
            if word.partition("=")[0] not in known | {"--help"}:
                yield word


@pytest.mark.parametrize(("page", "command"), dict.fromkeys(commands()))
def test_a_command_that_a_page_names_has_its_options(page: str, command: str) -> None:
    assert not list(unknown_words(command)), page


def test_the_pages_name_many_commands_besides_those_that_tests_run() -> None:
    assert len(set(commands())) > 60
    assert list(unknown_words("launch squeezenet-digits --reduction ring")) == ["--reduction"]
    assert list(unknown_words("strategies list")) == ["strategies"]


def test_the_map_of_the_layers_is_the_contract_that_the_linter_checks() -> None:
    contract = ConfigParser()
    contract.read(ROOT / "setup.cfg")
    layers = contract["importlinter:contract:layers"]["layers"]
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| layer |")[2].partition("\n\n")[0]
    shown = re.findall(r"`([a-z_]+)`", "".join(line.split(" | ")[0] for line in table.replace("\\|", "").splitlines()))
    assert sorted(shown) == sorted(re.findall(r"\w+", layers))


def test_every_file_of_tests_that_a_page_names_exists() -> None:
    for page in (*PAGES, "CONTRIBUTING.md"):
        for path in re.findall(r"\btests/[\w/]+\.py", (ROOT / page).read_text()):
            assert (ROOT / path).is_file(), f"{page} names {path}"


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md"])
def test_every_file_that_a_page_links_to_exists(page: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / page).read_text())
    broken = [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]
    assert not broken


def test_the_readme_is_read_in_one_sitting() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 135 and max(map(len, lines)) <= 120


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md"])
def test_lines_of_prose_fit_a_window(page: str) -> None:
    """Lines of at most 120 characters, except in tables and in what a terminal shows."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    long = [line for line in text.splitlines() if len(line) > 120 and not line.startswith(("|", "    "))]
    assert not long


@pytest.mark.parametrize(
    "page", sorted({*PAGES} - {"README.md", "docs/glossary.md", "docs/python.md", "docs/your-own-script.md"})
)
def test_every_page_on_commands_begins_with_one(page: str) -> None:
    before, fence, _ = (ROOT / page).read_text().partition("```sh\n")
    assert fence and len(before.splitlines()) <= 4
