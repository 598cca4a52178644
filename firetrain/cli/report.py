"""firetrain report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from firetrain.cli.options import echo_json, json_option, print_grid, refuse_given, results_option

if TYPE_CHECKING:
    from firetrain.report.grid import Grid
    from firetrain.report.report import Report

_CLOCKS = ("mlperf", "dawnbench", "algoperf", "airbench", "wall")


@click.command()
@click.argument("runs", nargs=-1)
@results_option
@click.option(
    "--clock", type=click.Choice(_CLOCKS), default="mlperf", show_default=True, help="Which time-to-accuracy counts."
)
@click.option(
    "--baseline", metavar="CONFIG", help="What speedups are against, as the table names it.  [default: the first]"
)
@click.option(
    "--each", is_flag=True, help="A row per run, in place of one for all runs that differ only in their seed."
)
@click.option("--olympic", is_flag=True, help="Means without the fastest and the slowest run, as MLPerf scores.")
@click.option(
    "--format", "form", type=click.Choice(["table", "markdown", "csv", "json"]), default="table", show_default=True,
    help="How to print it.",
)  # fmt: skip
@click.option("--columns", metavar="NAME,NAME", help="Which columns, in which order.")
@click.option("--where", multiple=True, metavar="COLUMN=TEXT", help="Only rows that have it; may be repeated.")
@click.option("--sort", metavar="COLUMN", help="Order rows by it; -COLUMN: the other way round.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page that needs nothing else.")
@click.option("--serve", is_flag=True, help="Show the page on 127.0.0.1, made anew whenever it is looked at.")
@click.option("--plots", type=click.Path(file_okay=False, path_type=Path), help="Draw the plots, SVG and PNG, in here.")
@click.option(
    "--export", type=click.Choice(["mlperf", "tensorboard", "csv"]), help="Write each run for other programs."
)
@click.option(
    "--into", type=click.Path(file_okay=False, path_type=Path), help="Where --export writes.  [default: export]"
)
@json_option
def report(
    runs: tuple[str, ...], results: Path, clock: str, baseline: str | None, each: bool, olympic: bool, form: str,
    columns: str | None, where: tuple[str, ...], sort: str | None, html: Path | None, serve: bool, plots: Path | None,
    export: str | None, into: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Compare RUNS: directories, folders of them, names in the results folder (default: all of them), or a comparison.json.

    Runs that differ only in their seed are one row: medians, with intervals where there are several. A directory that cannot
    be read is named and left out.

    \b
    Examples:
      firetrain report results/quickstart-*
      firetrain report --clock wall --baseline quickstart --html report.html
      firetrain report results/comparisons/firecaffe/comparison.json --format markdown
    """
    from firetrain.errors import UserError

    form = "json" if as_json else form
    shown = {"--each": each, "--columns": columns, "--where": where, "--sort": sort}
    told = {**shown, "--format or --json": form != "table"}
    made_files = {"--html": html, "--plots": plots}
    files = [Path(run) for run in runs if run.endswith(".json")]
    grouped = {"--html": html, "--serve": serve, "--export": export, "--each": each, "--olympic": olympic, "--baseline": baseline,
               "--clock": clock != "mlperf"}  # fmt: skip
    for there, unfit, why in (
        (form == "json", shown, "JSON has all of it"),
        (serve, {**told, **made_files, "--export": export}, "not with --serve, which shows a page"),
        (export, {**told, **made_files}, "not with --export, which writes runs"),
        (not export, {"--into": into}, "only with --export"),
        (each, {"--olympic": olympic}, "not with --each, a single run has no mean"),
        (files, grouped, "for runs, not for a comparison.json"),
    ):
        if there:
            refuse_given(unfit, why)

    def chosen_of(grid: Grid) -> Grid:
        return _choose(grid, columns, where, sort)

    if files:
        if len(files) > 1 or len(runs) > 1:
            raise UserError("one comparison at a time, and not together with runs")
        _show_comparison(files[0], form, plots, chosen_of)
        return

    def made() -> Report:
        from firetrain.report.history import find, read_all

        histories, left_out = read_all(find(runs, results))
        if not histories:
            raise UserError("no run that can be read:\n" + "\n".join(left_out))
        from firetrain.report.report import Report  # with numpy, for what there is to tell

        return Report.of(histories, left_out, clock, baseline, olympic=olympic)

    if serve:
        _serve(made)
        return
    found = made()
    for text in found.left_out:
        click.echo(f"left out: {text}", err=True)
    if export:
        _export(found, export, into or Path("export"))
        return
    if form == "json":
        echo_json(found.as_json())
    else:
        _show(found, form, each, chosen_of)
    if html:
        from firetrain.report.page import write_page

        write_page(found, html)
        click.echo(html, err=True)
    if plots:
        from firetrain.report.plots import write_plots

        for path in write_plots(found, plots):
            click.echo(path, err=True)


def _show(found: Report, form: str, each: bool, chosen_of: Callable[[Grid], Grid]) -> None:
    """The main table, and unless that is for a spreadsheet, all else that there is to say."""
    main = found.runs if each else found.main
    print_grid(chosen_of(main.grid()), form)
    if form == "csv":
        return
    for note in main.notes:
        click.echo(f"\n{note}")
    for table in found.tables:
        click.echo(f"\n{table.title}\n")
        print_grid(table.grid(), form)
        click.echo("".join(f"\n{note}" for note in table.notes), nl=bool(table.notes))
    for title, lines in (("differences", found.differences), ("warnings", found.doubts)):
        if lines:
            click.echo(f"\n{title}\n")
            click.echo("\n".join(f"- {line}" for line in lines))


def _choose(grid: Grid, columns: str | None, where: tuple[str, ...], sort: str | None) -> Grid:
    from firetrain.errors import UserError

    pairs = [text.partition("=") for text in where]
    if wrong := [text for text, (_, equals, _) in zip(where, pairs, strict=True) if not equals]:
        raise UserError(f"--where {wrong[0]}: expected COLUMN=TEXT")
    grid = grid.where({key: value for key, _, value in pairs})
    if sort:
        grid = grid.sorted(sort.removeprefix("-"), descending=sort.startswith("-"))
    return grid.columns(columns.split(",")) if columns else grid


def _show_comparison(path: Path, form: str, plots: Path | None, chosen_of: Callable[[Grid], Grid]) -> None:
    from firetrain.report.comparison import grid, load, remarks
    from firetrain.report.comparison_plot import plot

    found = load(path)
    if form == "json":
        echo_json(found)
    else:
        print_grid(chosen_of(grid(found)), form)
        if form != "csv":
            click.echo("\n" + "\n".join(remarks(found)))
    if plots:
        plots.mkdir(parents=True, exist_ok=True)
        for written in plot(found, plots):
            click.echo(written, err=True)


def _serve(made: Callable[[], Report]) -> None:
    from firetrain.report.page import page
    from firetrain.report.server import serve

    made()  # what is wrong with the options is told before anybody looks
    serve(lambda: page(made(), refresh_s=10), lambda address: click.echo(f"{address}  (Ctrl-C ends it)"))


def _export(found: Report, form: str, folder: Path) -> None:
    from firetrain.report.export import export

    for path in export(found.histories, form, folder):
        click.echo(path)
