"""firetrain report."""

from __future__ import annotations

from pathlib import Path

import click

from firetrain.cli.options import echo_json, json_option, results_option


@click.command()
@click.argument("runs", nargs=-1)
@results_option
@json_option
def report(runs: tuple[str, ...], results: Path, as_json: bool) -> None:
    """Compare RUNS, directories or names in the results folder (default: all of them) in a table.

    Time-to-accuracy counts from the first step's start to the end of the evaluation that reached the target. Speedup is
    by time-to-accuracy, against the first row.

    \b
    Example:
      firetrain report results/quickstart-*
    """
    from firetrain.records import find_runs
    from firetrain.report.table import rows, select, table

    chosen = select(runs, find_runs(results))
    if as_json:
        echo_json(rows(chosen))
        return
    import sys

    from rich.console import Console

    # a table that does not fit is wrapped in a terminal, and written in full to a file
    console = Console() if sys.stdout.isatty() else Console(width=240)
    console.print(table(chosen))
