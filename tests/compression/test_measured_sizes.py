"""The tables of results/compression are those of the stored sizes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "results" / "compression"


def test_every_row_of_the_readme_is_that_of_the_stored_sizes() -> None:
    """The README names the rows in words of its own; the numbers after the name are those that the script prints."""
    printed = subprocess.check_output([sys.executable, str(FOLDER / "table.py"), "--tables"], text=True).splitlines()
    rows = [
        line.strip("| ").split(" | ") for line in printed if line.startswith("| ") and set(line) & set("0123456789")
    ]
    told = [line.strip("| ").split(" | ") for line in (FOLDER / "README.md").read_text().splitlines() if "|" in line]
    assert len(rows) > 50
    for row in rows:
        numbers = [cell for cell in row[1:] if cell[:1] in set("0123456789+-")]
        assert any(contains(line, numbers) for line in told), row


def contains(line: list[str], cells: list[str]) -> bool:
    """Whether a line has these cells in this order, perhaps with others between them."""
    rest = iter(line)
    return all(cell in rest for cell in cells)
