"""The `report` command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from firetrain.cli.options import echo_json, json_option, print_table, refuse_given, results_option

if TYPE_CHECKING:
    from firetrain.report.report import Report
    from firetrain.report.text_table import TextTable

_CLOCKS = ("mlperf", "dawnbench", "algoperf", "airbench", "wall")


@click.command()
@click.argument("runs", nargs=-1)
@results_option
@click.option(
    "--clock", type=click.Choice(_CLOCKS), default="mlperf", show_default=True, help="How time-to-accuracy is measured."
)
@click.option(
    "--baseline",
    metavar="CONFIG",
    help="Config that speedups are relative to, as named in the table.  [default: the first]",
)
@click.option(
    "--each", is_flag=True, help="One row per run; by default, runs that differ only in their seed share a row."
)
@click.option("--olympic", is_flag=True, help="Olympic mean (without the fastest and the slowest run), as in MLPerf.")
@click.option(
    "--format", "form", type=click.Choice(["table", "markdown", "csv", "json"]), default="table", show_default=True,
    help="Output format.",
)  # fmt: skip
@click.option("--columns", metavar="NAME,NAME", help="Columns to show, in this order.")
@click.option(
    "--where",
    multiple=True,
    metavar="COLUMN=TEXT",
    help="Keep only rows with this value; repeated for one column: with any of the values.",
)
@click.option("--sort", metavar="COLUMN", help="Sort rows by COLUMN; -COLUMN for descending order.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a self-contained HTML page.")
@click.option("--serve", is_flag=True, help="Serve the page on 127.0.0.1, rebuilt on every request.")
@click.option(
    "--plots", type=click.Path(file_okay=False, path_type=Path), help="Write the plots to this folder, as SVG and PNG."
)
@click.option(
    "--export",
    type=click.Choice(["mlperf", "tensorboard", "csv"]),
    help="Export each run in the format of another program.",
)
@click.option(
    "--simulated",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Show simulated policies beside the runs, from a file that `firetrain simulate --json` has printed.",
)
@click.option("--into", type=click.Path(file_okay=False, path_type=Path), help="Folder of --export.  [default: export]")
@json_option
def report(
    runs: tuple[str, ...], results: Path, clock: str, baseline: str | None, each: bool, olympic: bool, form: str,
    columns: str | None, where: tuple[str, ...], sort: str | None, html: Path | None, serve: bool, plots: Path | None,
    export: str | None, simulated: Path | None, into: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Compare RUNS by time-to-accuracy, speed and parts of the time.

    RUNS are run directories, folders of them, names in the results folder (default: all), or a comparison.json. Runs that differ
    only in their seed share a row, with medians and, for several runs, intervals. Unreadable directories are listed and skipped.

    \b
    Examples:
      firetrain report results/quickstart-*
      firetrain report --clock wall --baseline quickstart --html report.html
      firetrain report results/comparisons/firecaffe/comparison.json --format markdown
    """
    form = "json" if as_json else form
    files = [Path(run) for run in runs if run.endswith(".json")]
    _refuse_useless_options(
        {"--each": each, "--columns": columns, "--where": where, "--sort": sort, "--format or --json": form != "table",
         "--html": html, "--plots": plots, "--export": export, "--serve": serve, "--into": into, "--olympic": olympic,
         "--baseline": baseline, "--clock": clock != "mlperf", "--simulated": simulated},
        as_json=form == "json", files=bool(files),
    )  # fmt: skip
    chosen_of = partial(_choose, columns=columns, where=where, sort=sort)
    if files:
        _show_comparison(files, len(runs), form, plots, chosen_of)
        return
    made = partial(_made, runs, results, clock, baseline, olympic, simulated)
    if serve:
        _serve(made)
        return
    found = made()
    for text in found.left_out:
        click.echo(f"skipped: {text}", err=True)
    if export:
        _export(found, export, into or Path("export"))
        return
    _show(found, form, each, chosen_of)
    _write(found, html, plots)


def _refuse_useless_options(given: Mapping[str, object], *, as_json: bool, files: bool) -> None:
    """UserError if an option was given that another one, or a comparison.json, would make useless."""
    shown = ("--each", "--columns", "--where", "--sort")
    for there, unfit, why in (
        (as_json, shown, "no effect with JSON, which contains everything"),
        (given["--serve"], (*shown, "--format or --json", "--html", "--plots", "--export"), "not with --serve"),
        (given["--export"], (*shown, "--format or --json", "--html", "--plots", "--simulated"), "not with --export"),
        (not given["--export"], ("--into",), "only with --export"),
        (given["--each"], ("--olympic",), "not with --each: a single run has no mean"),
        (files, ("--html", "--serve", "--export", "--each", "--olympic", "--baseline", "--clock", "--simulated"),
         "only for runs, not for a comparison.json"),
    ):  # fmt: skip
        if there:
            refuse_given({name: given[name] for name in unfit}, why)


def _made(
    runs: tuple[str, ...], results: Path, clock: str, baseline: str | None, olympic: bool, simulated: Path | None
) -> Report:
    """The report of these runs; UserError if none is readable."""
    from firetrain.errors import UserError
    from firetrain.report.history import find, read_all

    closed: list[str] = []
    histories, left_out = read_all(find(runs, results, closed))
    left_out += closed
    if not histories:
        raise UserError("no readable run:\n" + "\n".join(left_out))
    from firetrain.report.report import Report  # imported here: it loads numpy
    from firetrain.report.simulated import load

    outcomes = load(simulated) if simulated else []
    return Report.of(histories, left_out, clock, baseline, olympic=olympic, simulated=outcomes)


def _write(found: Report, html: Path | None, plots: Path | None) -> None:
    """Write the requested page and plots, and print their paths to stderr."""
    if html:
        from firetrain.report.page import write_page

        write_page(found, html)
        click.echo(html, err=True)
    if plots:
        from firetrain.report.plots import write_plots

        for path in write_plots(found, plots):
            click.echo(path, err=True)


def _show(found: Report, form: str, each: bool, chosen_of: Callable[[TextTable], TextTable]) -> None:
    """Print everything as JSON; or the main table, and, unless that is CSV, everything else."""
    if form == "json":
        echo_json(found.as_json())
        return
    main = found.runs if each else found.main
    print_table(chosen_of(main.text_table()), form)
    if form == "csv":
        return
    for note in main.notes:
        click.echo(f"\n{note}")
    for table in found.tables:
        click.echo(f"\n{table.title}\n")
        print_table(table.text_table(), form)
        click.echo("".join(f"\n{note}" for note in table.notes), nl=bool(table.notes))
    for title, lines in (("differences", found.differences), ("warnings", found.doubts)):
        if lines:
            click.echo(f"\n{title}\n")
            click.echo("\n".join(f"- {line}" for line in lines))


def _choose(table: TextTable, columns: str | None, where: tuple[str, ...], sort: str | None) -> TextTable:
    from firetrain.errors import UserError

    pairs = [text.partition("=") for text in where]
    if wrong := [text for text, (_, equals, _) in zip(where, pairs, strict=True) if not equals]:
        raise UserError(f"--where {wrong[0]}: expected COLUMN=TEXT")
    wanted: dict[str, list[str]] = {}
    for key, _, value in pairs:
        wanted.setdefault(key, []).append(value)
    table = table.where(wanted)
    if sort:
        table = table.sorted(sort.removeprefix("-"), descending=sort.startswith("-"))
    return table.columns(columns.split(",")) if columns else table


def _show_comparison(
    files: list[Path], arguments: int, form: str, plots: Path | None, chosen_of: Callable[[TextTable], TextTable]
) -> None:
    from firetrain.errors import CannotCreate, UserError
    from firetrain.records.file import cannot_write
    from firetrain.report.comparison import load
    from firetrain.report.comparison_plot import plot
    from firetrain.report.comparison_table import remarks, text_table

    if arguments > 1:
        raise UserError("give one comparison at a time, and no runs with it")
    found = load(files[0])
    if form == "json":
        echo_json(found)
    else:
        print_table(chosen_of(text_table(found)), form)
        if form != "csv":
            click.echo("\n" + "\n".join(remarks(found)))
    if plots:
        with cannot_write(plots, CannotCreate):
            plots.mkdir(parents=True, exist_ok=True)
        for written in plot(found, plots):
            click.echo(written, err=True)


def _serve(made: Callable[[], Report]) -> None:
    from firetrain.report.page import page
    from firetrain.report.page_server import serve

    made()  # report mistakes in options before the page is opened
    serve(lambda: page(made(), refresh_s=10), lambda address: click.echo(f"{address}  (Ctrl-C to stop)"))


def _export(found: Report, form: str, folder: Path) -> None:
    from firetrain.report.export import export

    for path in export(found.histories, form, folder):
        click.echo(path)
