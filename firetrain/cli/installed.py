"""The list of what is installed in a group of entry points."""

from __future__ import annotations

from collections.abc import Callable

import click

from firetrain.cli.options import echo_json


def list_installed(group: str, summary: Callable[[str], str], as_json: bool) -> None:
    """Print each name of an entry-point group, with `summary(name)` and its package; as JSON, with the object it names."""
    from firetrain.config.names import entry_point, installed_names, package_of
    from firetrain.errors import UserError

    names = installed_names(group)
    if as_json:
        echo_json({name: entry_point(group, name).value for name in names})
        return
    width = max(map(len, names), default=0)
    for name in names:
        try:
            text = f"{summary(name)} [{package_of(entry_point(group, name))}]"
        except UserError as error:  # list the others nevertheless
            text = str(error)
        click.echo(f"{name:<{width}}  {text}")
