"""Tables of text say what their cells say."""

from __future__ import annotations

from rich.console import Console

from firetrain.report.text_table import TextTable


def test_brackets_in_cells_and_headings_are_no_markup() -> None:
    console = Console(width=80, record=True)
    console.print(TextTable(["note", "[ms]"], [["[rank1]: [3, 8] [/red]", "1"]], names=1).table())
    shown = console.export_text()
    assert "[rank1]: [3, 8] [/red]" in shown and "[ms]" in shown
