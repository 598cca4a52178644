"""The commands in the README and in all pages of the documentation run as shown."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command import run_command
from recorded import record

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")))
# blocks that are marked as commands need the package of their page; test_third_party.py runs them
COMMANDS = {
    page: [
        line
        for block in re.findall(r"(?<!<!-- commands -->\n)```sh\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        for line in block.splitlines()
        if line
    ]
    for page in PAGES
}


# what the commands have printed, which need not be run again for the pages that show it
printed_by: dict[str, str] = {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all commands, because the report shows the earlier launches."""
    made = tmp_path_factory.mktemp("readme")
    record(made / "results")  # for a page that shows a report before any launch
    return made


@pytest.mark.parametrize("command", dict.fromkeys(line for lines in COMMANDS.values() for line in lines))
def test_the_command_works(command: str, folder: Path, archive: Callable[[str], Path]) -> None:
    """Those of the README as a shell starts them, those of other pages without the time that Python and torch take to start."""
    words = [re.sub(r"/path/to/([\w-]+)", lambda found: str(archive(found[1])), word) for word in shlex.split(command)]
    module = {"firetrain": "firetrain", "torchrun": "torch.distributed.run"}[words[0]]
    extra = ["--standalone"] if words[0] == "torchrun" else []  # another job may hold torchrun's usual port
    if command in COMMANDS["README.md"] or words[0] != "firetrain":
        line = [sys.executable, "-m", module, *extra, *words[1:]]
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=400)
    else:
        done = run_command(tuple(words[1:]), folder, 400)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    printed_by[command] = done.stdout


# commands whose output depends neither on the speed of a machine nor on its date
ALWAYS_ALIKE = ("topology show", "strategy show", "data info", "model show", "config show", "predict")
SHOWN = [
    (page, commands, output)
    for page in PAGES
    for commands, output in re.findall(
        r"```sh\n((?:.(?!```))*?\n)```\n(?:(?!```).)*?```text\n(.*?)```", (ROOT / page).read_text(), re.DOTALL
    )
    if all(line.removeprefix("firetrain ").startswith(ALWAYS_ALIKE) for line in commands.splitlines() if line)
]


@pytest.mark.parametrize(("page", "commands", "output"), SHOWN)
def test_the_output_that_a_page_shows_is_what_its_commands_print(
    page: str, commands: str, output: str, folder: Path
) -> None:
    """The words of every line that is shown are printed in this order in a line; a page may leave out lines and columns."""
    printed: list[list[str]] = []
    for line in filter(None, commands.splitlines()):
        if line not in printed_by:
            done = run_command(tuple(shlex.split(line)[1:]), folder, 120)
            assert done.returncode == 0, done.stderr
            printed_by[line] = done.stdout
        printed += [shown.split() for shown in printed_by[line].splitlines()]
    wanted = [shown.split() for shown in output.splitlines() if shown.strip() not in ("", "...")]
    missing = [shown for shown in wanted if not any(_contains(line, shown) for line in printed)]
    assert wanted and not missing, page


def _contains(line: list[str], words: list[str]) -> bool:
    """Whether all words occur in a line, in their order."""
    rest = iter(line)
    return all(word in rest for word in words)


def test_several_pages_show_output_that_can_be_compared() -> None:
    assert len(SHOWN) >= 4


TABLES = (
    "README.md",
    "docs/runs.md",
    "docs/comparing.md",
    "results/large-batch/README.md",
    "results/comparisons/README.md",
    "results/strategies/README.md",
)
COMMAND = re.compile(r"^    firetrain (report results/(?:.*\\\n)*.*)$", re.MULTILINE)
REPORTS = [
    (page, command)
    for page in TABLES
    for command in COMMAND.findall((ROOT / page).read_text())
    if "--format markdown" in command
]


@pytest.mark.parametrize(("page", "command"), REPORTS)
def test_a_table_is_what_the_command_above_it_prints_from_a_clone(page: str, command: str) -> None:
    """The numbers of a table are those of the records in the same folder."""
    done = run_command(tuple(shlex.split(command.replace("\\\n", " "))), ROOT, 60)
    assert done.returncode == 0, done.stderr
    table = done.stdout.split("\n\n")[0].strip()
    assert table.startswith("|") and len(table.splitlines()) >= 4, "two rows"
    assert table in (ROOT / page).read_text()


SCRIPTS = ("asynchronous/table.py", "asynchronous/virtual.py", "search/truth_table.py", "strategies/table.py")


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_tables_of_a_script_are_those_of_its_page(script: str, tmp_path: Path) -> None:
    """Every row that it prints from the records beside it; it draws into a copy of the folder."""
    folder = shutil.copytree((ROOT / "results" / script).parent, tmp_path / "results")
    done = subprocess.run(
        [sys.executable, folder / Path(script).name], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    page, rows = (folder / "README.md").read_text(), [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len(rows) >= 8 and [row for row in rows if row.strip() not in page] == []


def test_each_page_of_results_has_a_table_that_a_clone_can_print() -> None:
    assert {page for page, _ in REPORTS} == set(TABLES)
