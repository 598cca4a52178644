"""A table of text for terminals, Markdown and CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from firetrain.errors import UserError, unknown
from firetrain.report.target import NOT_REACHED


@dataclass(frozen=True)
class TextTable:
    """Headings and rows of cells. The first `names` columns are names, the others numbers; an empty row is a separator."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int

    def columns(self, headings: Sequence[str]) -> TextTable:
        """The table with these columns, in this order; UserError lists the valid ones."""
        columns = [self._column(heading) for heading in headings]
        names = sum(column < self.names for column in columns)
        return TextTable(
            list(headings), [[row[column] for column in columns] if row else [] for row in self.rows], names
        )

    def where(self, wanted: Mapping[str, Collection[str]]) -> TextTable:
        """The table with only the rows that have one of the wanted texts in each of these columns.

        UserError lists the valid headings.
        """
        columns = {self._column(heading): texts for heading, texts in wanted.items()}
        rows = [row for row in self.rows if row and all(row[column] in texts for column, texts in columns.items())]
        return TextTable(self.headings, rows if columns else self.rows, self.names)

    def sorted(self, heading: str, *, descending: bool = False) -> TextTable:
        """The table sorted by a column: numbers by size, texts alphabetically, dashes last; separator rows are removed."""
        column = self._column(heading)
        rows = sorted(filter(None, self.rows), key=lambda row: _rank(row[column]), reverse=descending)
        return TextTable(self.headings, sorted(rows, key=lambda row: row[column] == "-"), self.names)

    def _column(self, heading: str) -> int:
        if heading not in self.headings:
            raise UserError(unknown("column", heading, self.headings))
        return self.headings.index(heading)

    def table(self) -> Table:
        """The table for a terminal."""
        view = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
        for number, heading in enumerate(self.headings):
            view.add_column(Text(heading), justify="left" if number < self.names else "right", overflow="fold")
        for row in self.rows:
            view.add_row(*map(Text, row))  # whose brackets are no markup of rich's
        return view

    def markdown(self) -> str:
        """The table as GitHub's Markdown."""
        rules = ["---" if number < self.names else "---:" for number in range(len(self.headings))]
        rows = [[cell.replace("|", "\\|") for cell in row] for row in (self.headings, rules, *filter(None, self.rows))]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def csv(self) -> str:
        """The table as CSV, with a line of headings."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.headings, *filter(None, self.rows)])
        return text.getvalue().rstrip("\n")


def _rank(cell: str) -> tuple[bool, float, str]:
    if cell == NOT_REACHED:
        return True, math.inf, cell
    number = re.match(r"-?[\d,]*\.?\d+", cell)
    return (True, float(number[0].replace(",", "")), cell) if number else (False, 0.0, cell)
