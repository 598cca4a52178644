"""firetrain launch."""

from __future__ import annotations

from pathlib import Path

import click

from firetrain.cli.options import config_argument, echo_json, json_option, results_option, set_option


@click.command()
@config_argument
@click.option(
    "--on", "place", type=click.Choice(["auto", "local"]), default="auto", show_default=True, help="Where to run."
)
@click.option(
    "--nodes", type=int, help="Number of nodes, in place of cluster.nodes; on this machine they are emulated."
)
@click.option("--ranks-per-node", type=int, help="Ranks on each node, in place of cluster.ranks_per_node.")
@set_option
@results_option
@click.option("--dry-run", is_flag=True, help="Check everything and print what would run; start nothing.")
@json_option
def launch(
    config: str, place: str, nodes: int | None, ranks_per_node: int | None, overrides: tuple[str, ...],
    results: Path, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run CONFIG, a shipped config's name or a file, on several ranks and wait for the end.

    \b
    Example:
      firetrain launch squeezenet-digits --ranks-per-node 2 --set reduction.name=ring
    """
    from rich.console import Console

    from firetrain.config import load_config
    from firetrain.launch.job import launch_local, refuse_misfits, world_of
    from firetrain.report.summary import details, headline, next_commands, time_table

    given = {"cluster.nodes": nodes, "cluster.ranks_per_node": ranks_per_node}
    shorthand = [f"{key}={value}" for key, value in given.items() if value is not None]
    loaded = load_config(config, [*overrides, *shorthand])
    refuse_misfits(loaded)
    if dry_run:
        click.echo(f"# {world_of(loaded)} on this machine; nothing was started")
        click.echo(loaded.annotated(), nl=False)
        return
    console = Console(stderr=as_json)
    run = launch_local(loaded, results, console)
    if as_json:
        echo_json({"run": str(run.path), **run.summary()})
        return
    console.print(f"\n[bold]{headline(run)}[/bold]", highlight=False)
    for line in details(run):
        console.print(line, highlight=False)
    console.print()
    console.print(time_table(run))
    console.print("\nnext:", highlight=False)
    for line in next_commands(run):
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
