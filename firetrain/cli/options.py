"""Options and arguments that several commands share."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firetrain.limits import MOST_LOCAL_RANKS, MOST_OF_ANYTHING, MOST_RANKS, MOST_REPEATS, MOST_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from click.shell_completion import CompletionItem

    from firetrain.report.grid import Grid


class ConfigName(click.ParamType):  # type: ignore[type-arg,unused-ignore] # generic from click 8.4 on
    """A shipped config's name or a file; completes both."""

    name = "config"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Names of shipped configs, or files once a path has begun."""
        from click.shell_completion import CompletionItem

        if os.sep in incomplete or incomplete.startswith("."):
            return [CompletionItem(incomplete, type="file")]
        from firetrain.config import shipped_configs

        return [CompletionItem(name) for name in shipped_configs() if name.startswith(incomplete)]


class Number(click.FloatRange):
    """A finite number within bounds: click's own takes nan wherever it has none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """BadParameter for what is none."""
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return found


ranks_type = click.IntRange(1, MOST_RANKS)
seconds_type = Number(0, MOST_SECONDS, min_open=True)
amount_type = Number(0, MOST_OF_ANYTHING, min_open=True)


def local_ranks_type(least: int) -> click.IntRange:
    """Processes that are started here."""
    return click.IntRange(least, MOST_LOCAL_RANKS)


def repeats_type(least: int) -> click.IntRange:
    """How often something is timed."""
    return click.IntRange(least, MOST_REPEATS)


config_argument = click.argument("config", type=ConfigName())
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override a value of the config; may be repeated.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for a script.")
results_option = click.option(
    "--results", type=click.Path(file_okay=False, path_type=Path), default=Path("results"), show_default=True,
    help="The folder that holds the runs.",
)  # fmt: skip


def was_given(name: str) -> bool:
    """Whether the user wrote this option of the present command."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def refuse_given(options: Mapping[str, object], why: str) -> None:
    """UserError names those of `options` that were given: they would do nothing."""
    from firetrain.errors import UserError

    if given := [name for name, value in options.items() if value]:
        raise UserError(f"{', '.join(given)}: {why}")


def print_grid(grid: Grid, form: str = "table") -> None:
    """As a table, or as markdown or csv."""
    import sys

    from rich.console import Console

    if form == "table":
        # one that does not fit is wrapped in a terminal, and written in full to a file
        console = Console() if sys.stdout.isatty() else Console(width=260)
        console.print(grid.table())
    else:
        click.echo(grid.markdown() if form == "markdown" else grid.csv())


def echo_json(value: Any) -> None:
    """Print a value as JSON."""
    import json

    click.echo(json.dumps(value, indent=2))
