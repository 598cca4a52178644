"""Options and arguments that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


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


def echo_json(value: Any) -> None:
    """Print a value as JSON."""
    import json

    click.echo(json.dumps(value, indent=2))
