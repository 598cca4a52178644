"""Options and arguments that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

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
