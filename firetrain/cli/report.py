"""firetrain report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from firetrain.cli.options import echo_json, json_option, results_option

if TYPE_CHECKING:
    from firetrain.report.grid import Grid


@click.command()
@click.argument("runs", nargs=-1)
@results_option
@click.option(
    "--format", "form", type=click.Choice(["table", "markdown", "csv", "json"]), default="table", show_default=True,
    help="How to print it.",
)  # fmt: skip
@click.option("--columns", metavar="NAME,NAME", help="Which columns, in which order.")
@click.option("--where", multiple=True, metavar="COLUMN=TEXT", help="Only rows that have it; may be repeated.")
@click.option(
    "--plots",
    type=click.Path(file_okay=False, path_type=Path),
    help="A comparison: draw it anew, SVG and PNG, in here.",
)
@json_option
def report(
    runs: tuple[str, ...], results: Path, form: str, columns: str | None, where: tuple[str, ...], plots: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Compare RUNS, directories or names in the results folder (default: all of them) in a table, or show comparison.json.

    Time-to-accuracy counts from the first step's start to the end of the evaluation that reached the target. Speedup is
    by time-to-accuracy, against the first row.

    \b
    Examples:
      firetrain report results/quickstart-*
      firetrain report results/comparisons/firecaffe/comparison.json --format markdown
    """
    from firetrain.errors import UserError
    from firetrain.records import find_runs
    from firetrain.report.table import grid, rows, select

    form = "json" if as_json else form
    if form == "json" and (columns or where):
        raise UserError("--columns and --where: JSON has all of it")

    def chosen_of(grid: Grid) -> Grid:
        pairs = [text.partition("=") for text in where]
        if wrong := [text for text, (_, equals, _) in zip(where, pairs, strict=True) if not equals]:
            raise UserError(f"--where {wrong[0]}: expected COLUMN=TEXT")
        rows = grid.where({key: value for key, _, value in pairs})
        return rows.columns(columns.split(",")) if columns else rows

    files = [Path(run) for run in runs if run.endswith(".json")]
    if files and (len(files) > 1 or len(runs) > 1):
        raise UserError("one comparison at a time, and not together with runs")
    if files:
        _show_comparison(files[0], form, plots, chosen_of)
        return
    if plots:
        raise UserError("--plots: only with a comparison.json")
    chosen = select(runs, find_runs(results))
    if form == "json":
        echo_json(rows(chosen))
    else:
        _print(chosen_of(grid(chosen)), form)


def _show_comparison(path: Path, form: str, plots: Path | None, chosen_of: Callable[[Grid], Grid]) -> None:
    from firetrain.report.comparison import grid, load, remarks
    from firetrain.report.comparison_plot import plot

    found = load(path)
    if form == "json":
        echo_json(found)
    else:
        _print(chosen_of(grid(found)), form)
        if form != "csv":
            click.echo("\n" + "\n".join(remarks(found)))
    if plots:
        plots.mkdir(parents=True, exist_ok=True)
        for written in plot(found, plots):
            click.echo(written, err=True)


def _print(grid: Grid, form: str) -> None:
    import sys

    if form == "markdown":
        click.echo(grid.markdown())
    elif form == "csv":
        click.echo(grid.csv())
    else:
        from rich.console import Console

        # a table that does not fit is wrapped in a terminal, and written in full to a file
        console = Console() if sys.stdout.isatty() else Console(width=240)
        console.print(grid.table())
