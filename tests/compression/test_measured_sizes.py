"""The tables of results/compression are those of the stored sizes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "results" / "compression"


def test_every_row_of_the_readme_is_that_of_the_stored_sizes() -> None:
    """In the order of the script, which is that of the page; the page names rows in words of its own, before the same numbers."""
    printed = subprocess.check_output([sys.executable, str(FOLDER / "table.py"), "--tables"], text=True).splitlines()
    # after the name; headings have no numbers
    numbers = [
        [cell for cell in line.strip("| ").split(" | ")[1:] if cell[:1] in set("0123456789+-")] for line in printed
    ]
    rows = [row for row in numbers if row]
    told = [line.strip("| ").split(" | ") for line in (FOLDER / "README.md").read_text().splitlines() if "|" in line]
    assert len(rows) > 50
    rest = iter(told)
    for row in rows:
        assert any(contains(line, row) for line in rest), row


def contains(line: list[str], cells: list[str]) -> bool:
    """Whether a line has these cells in this order, perhaps with others between them."""
    rest = iter(line)
    return all(cell in rest for cell in cells)
