"""The help of every command: it has an example, explains all options, and its examples are valid."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from firetrain.cli.main import main

ROOT = Path(__file__).parents[2]


def walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that is not a group, with the words that call it."""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from walk(inner, (*path, name))
    elif not command.hidden:
        yield path, command


COMMANDS = {" ".join(path): command for path, command in walk(main)}


def examples(command: click.Command) -> list[str]:
    """The command lines in the help of a command; a backslash continues a line."""
    text = re.sub(r"\\\n\s*", " ", command.help or "")
    return re.findall(r"^\s*(?:srun .*?)?firetrain (.*)$", text, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_begins_its_help_with_a_sentence(name: str) -> None:
    first = (COMMANDS[name].help or "").partition("\n\n")[0].strip()
    assert first and first.endswith(".") and first[0].isupper()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_an_example_of_itself(name: str) -> None:
    found = examples(COMMANDS[name])
    assert found, "no example"
    assert all(example.startswith(name) for example in found)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name: str) -> None:
    for parameter in COMMANDS[name].params:
        if isinstance(parameter, click.Option):
            sentence = (parameter.help or "").partition("  [default: ")[0].strip()
            assert sentence.endswith((".", ")")), parameter.opts


@pytest.mark.parametrize(
    ("name", "example"), [(name, example) for name, command in COMMANDS.items() for example in examples(command)]
)
def test_an_example_is_read_by_the_command_that_shows_it(name: str, example: str, tmp_path: Path) -> None:
    """click parses the example and stops before the command runs: its options exist, and their values have the right type."""
    words = shlex.split(example.partition(" | ")[0].partition(" > ")[0])[len(name.split()) :]
    for word in words:  # folders that an example reads
        if "/" in word and not word.startswith("-"):
            (tmp_path / word).mkdir(parents=True, exist_ok=True)
    context = COMMANDS[name].make_context(name, words, resilient_parsing=False)
    assert context.command is COMMANDS[name]


@pytest.mark.parametrize(
    "name", [name for name, command in COMMANDS.items() if any("--json" in one.opts for one in command.params)]
)
def test_json_is_a_flag(name: str) -> None:
    (option,) = [one for one in COMMANDS[name].params if "--json" in one.opts]
    assert isinstance(option, click.Option) and option.is_flag


def test_options_of_one_name_mean_one_thing() -> None:
    """An option of the same name has the same type in all commands."""
    kinds: dict[str, set[str]] = {}
    for command in COMMANDS.values():
        for option in command.params:
            if isinstance(option, click.Option):
                kind = "flag" if option.is_flag else "values" if option.multiple else "value"
                for text in option.opts:
                    kinds.setdefault(text, set()).add(kind)
    assert {text: found for text, found in kinds.items() if len(found) > 1} == {}


def test_the_surface_is_that_of_the_documentation() -> None:
    pages = "\n".join(path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    unmentioned = [name for name in COMMANDS if f"firetrain {name}" not in pages]
    assert unmentioned == []
