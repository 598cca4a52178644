"""Options, arguments and output functions that several commands share."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firetrain.limits import (
    LEAST_WAIT_S,
    MOST_LOCAL_RANKS,
    MOST_OF_ANYTHING,
    MOST_PLACED_RANKS,
    MOST_RANKS,
    MOST_REPEATS,
    MOST_SECONDS,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from click.shell_completion import CompletionItem
    from rich.console import Console

    from firetrain.report.text_table import TextTable


class ConfigName(click.ParamType):  # type: ignore[type-arg,unused-ignore] # generic from click 8.4 on
    """The name of a shipped config, or a file; the shell completes both."""

    name = "config"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete names of shipped configs, or files if the text looks like a path."""
        from click.shell_completion import CompletionItem

        if os.sep in incomplete or incomplete.startswith("."):
            return [CompletionItem(incomplete, type="file")]
        from firetrain.config import shipped_configs

        return [CompletionItem(name) for name in shipped_configs() if name.startswith(incomplete)]


class Number(click.FloatRange):
    """A finite number within bounds; click's own type accepts nan if it has no bounds."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert the text; BadParameter if it is not a finite number."""
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return found


ranks_type = click.IntRange(1, MOST_RANKS)
seconds_type = Number(LEAST_WAIT_S, MOST_SECONDS)
amount_type = Number(0, MOST_OF_ANYTHING, min_open=True)


policies_option = click.option(
    "--policies", default="sync,backup:spare=1,ssp:staleness=3,async", show_default=True, metavar="NAME,NAME",
    help="When gradients are applied.",
)  # fmt: skip
workers_option = click.option(
    "--workers", type=click.IntRange(1, MOST_PLACED_RANKS), default=8, show_default=True, help="Number of workers."
)


def local_ranks_type(least: int) -> click.IntRange:
    """The type of a number of ranks on this machine."""
    return click.IntRange(least, MOST_LOCAL_RANKS)


def repeats_type(least: int) -> click.IntRange:
    """The type of a number of timings, `least` or more."""
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
what_if_option = click.option(
    "--what-if", default="", metavar="KEY=xN,...",
    help="Scale compute, or between nodes bandwidth, latency, oversubscription or leaf.",
)  # fmt: skip
save_option = click.option(
    "--save", type=click.Path(dir_okay=False, path_type=Path), default=Path("profile.json"), show_default=True,
    help="The profile to create or update.",
)  # fmt: skip
results_option = click.option(
    "--results", type=click.Path(file_okay=False, path_type=Path), default=Path("results"), show_default=True,
    help="The folder of the runs.",
)  # fmt: skip


def make_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A console for commands that must continue when their output pipe is closed: it raises BrokenPipeError."""
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            """Raise an error; rich would exit, which would end the ranks."""
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    return Terminal(stderr=stderr, width=width)


def was_given(name: str) -> bool:
    """Whether this option of the current command is on the command line."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def option_names(values: Mapping[str, object]) -> dict[str, object]:
    """Rename the keys from parameter names to option names (`per_rank` to `--per-rank`)."""
    return {f"--{name.replace('_', '-')}": value for name, value in values.items()}


def refuse_given(options: Mapping[str, object], why: str) -> None:
    """UserError if any of `options` was given, because it would have no effect; `why` is the reason."""
    from firetrain.errors import UserError

    if given := [name for name, value in options.items() if value]:
        raise UserError(f"{', '.join(given)}: {why}")


def print_table(table: TextTable, form: str = "table") -> None:
    """Print a table for a terminal, as Markdown or as CSV."""
    import sys

    from rich.console import Console

    if form == "table":
        # wide tables are wrapped only in a terminal
        console = Console() if sys.stdout.isatty() else Console(width=260)
        console.print(table.table())
    else:
        click.echo(table.markdown() if form == "markdown" else table.csv())


def echo_json(value: Any) -> None:
    """Print a value as JSON."""
    import json

    click.echo(json.dumps(value, indent=2))
