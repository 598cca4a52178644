"""The `site` commands."""

from __future__ import annotations

import click

from firetrain.cli.options import echo_json, json_option, ranks_type


@click.group()
def site() -> None:
    """List, show and check sites, the settings of Slurm clusters."""


@site.command("list")
@json_option
def list_sites(as_json: bool) -> None:
    """List the shipped sites and your own.

    Your own are the files in ~/.config/firetrain/sites.

    \b
    Example:
      firetrain site list
    """
    from firetrain.errors import UserError
    from firetrain.launch.site import load_site, sites

    known, mistakes = {}, []
    for name in sites():
        try:
            known[name] = load_site(name)
        except UserError as error:
            mistakes.append(str(error))
    if as_json:
        echo_json({name: found.model_dump(mode="json") for name, found in known.items()})
    else:
        for name, found in known.items():
            click.echo(f"{name:<14}{found.description}{'' if found.verified else ' (unverified: never run there)'}")
    if mistakes:
        raise UserError("\n".join(mistakes))


@site.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show all settings of a site, and the path of its file.

    \b
    Example:
      firetrain site show generic
    """
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
@click.option("--nodes", type=ranks_type, default=1, show_default=True, help="Nodes of the job.")
@click.option("--ranks-per-node", type=ranks_type, default=1, show_default=True, help="Ranks on each node of the job.")
@json_option
def check(name: str, nodes: int, ranks_per_node: int, as_json: bool) -> None:
    """Check whether the cluster would accept a job of this site.

    Nothing is submitted.

    \b
    Example:
      firetrain site check testbed --nodes 4 --ranks-per-node 2
    """
    from pathlib import Path

    from firetrain.cluster import World
    from firetrain.launch.fit import refuse_unfit_jobs
    from firetrain.launch.script import Request
    from firetrain.launch.site import load_site
    from firetrain.words import counted

    found = load_site(name)
    refuse_unfit_jobs(Request(Path.cwd() / "run", World.even(nodes, ranks_per_node), found))
    if as_json:
        echo_json({"site": name, "nodes": nodes, "ranks_per_node": ranks_per_node, "time": found.time})
        return
    click.echo(
        f"{name} fits this cluster: {counted(nodes, 'node')} with {counted(ranks_per_node, 'rank')} each, {found.time}"
    )
