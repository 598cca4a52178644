"""firetrain site."""

from __future__ import annotations

import click

from firetrain.cli.options import echo_json, json_option, ranks_type


@click.group()
def site() -> None:
    """Slurm clusters: what is particular to each, in one file."""


@site.command("list")
@json_option
def list_sites(as_json: bool) -> None:
    """All sites: those that come with firetrain, and those in ~/.config/firetrain/sites."""
    from firetrain.launch.site import load_site, sites

    known = {name: load_site(name) for name in sites()}
    if as_json:
        echo_json({name: found.model_dump(mode="json") for name, found in known.items()})
        return
    for name, found in known.items():
        click.echo(f"{name:<14}{found.description}{'' if found.verified else ' (unverified: never run there)'}")


@site.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """All settings of a site, and where its file is."""
    from firetrain.config.load import leaves
    from firetrain.launch.site import load_site, sites

    found = load_site(name)
    if as_json:
        echo_json(found.model_dump(mode="json"))
        return
    click.echo(f"# {sites().get(name, name)}")
    for path, value in leaves(found):
        click.echo(f"{'.'.join(path)}: {value}")


@site.command()
@click.argument("name")
@click.option("--nodes", type=ranks_type, default=1, show_default=True, help="Of the job to check for.")
@click.option("--ranks-per-node", type=ranks_type, default=1, show_default=True, help="Of the job to check for.")
def check(name: str, nodes: int, ranks_per_node: int) -> None:
    """Ask the cluster once whether a job by this site's settings would fit; submits nothing.

    \b
    Example:
      firetrain site check testbed --nodes 4 --ranks-per-node 2
    """
    from pathlib import Path

    from firetrain.cluster import World
    from firetrain.launch.batch import Request
    from firetrain.launch.fit import refuse_misfits
    from firetrain.launch.site import load_site

    found = load_site(name)
    refuse_misfits(Request(Path.cwd() / "run", World.even(nodes, ranks_per_node), found))
    click.echo(f"{name} fits this cluster: {nodes} nodes with {ranks_per_node} ranks each, {found.time}")
