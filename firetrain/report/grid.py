"""A table of texts, for a terminal, for Markdown and for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table


@dataclass(frozen=True)
class Grid:
    """Headings and rows of cells; the first `names` columns are names, the others numbers. An empty row is a gap."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int

    def table(self) -> Table:
        """For a terminal."""
        view = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
        for number, heading in enumerate(self.headings):
            view.add_column(heading, justify="left" if number < self.names else "right", overflow="fold")
        for row in self.rows:
            view.add_row(*row)
        return view

    def markdown(self) -> str:
        """As GitHub reads it."""
        rules = ["---" if number < self.names else "---:" for number in range(len(self.headings))]
        rows = [[cell.replace("|", "\\|") for cell in row] for row in (self.headings, rules, *filter(None, self.rows))]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def csv(self) -> str:
        """With a line of headings."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.headings, *filter(None, self.rows)])
        return text.getvalue().rstrip("\n")
