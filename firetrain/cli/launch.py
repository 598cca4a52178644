"""firetrain launch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firetrain.cli.options import config_argument, echo_json, json_option, results_option, set_option

if TYPE_CHECKING:
    from rich.console import Console

    from firetrain.config import Loaded
    from firetrain.launch.site import Site
    from firetrain.records import Run

REPLACED = ("time", "partition", "account", "qos", "exclude", "launcher")
_SLURM = ("site", *REPLACED, "env", "pass_env", "segments", "wait", "follow")


def site_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--site, and what may be said in place of its settings."""
    options = (
        click.option("--site", help="Slurm: the cluster's settings, a name (firetrain site list) or a file."),
        click.option("--time", help="Slurm: walltime as [days-]hours:minutes:seconds."),
        *(click.option(f"--{key}", help="Slurm: in place of the site's.") for key in ("partition", "account", "qos")),
        click.option("--exclude", metavar="NODES", help="Slurm: nodes to leave out, for instance node[3-4],node9."),
        click.option("--launcher", help="Slurm: what starts the ranks: srun, torchrun, mpirun or horovodrun."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@config_argument
@click.option(
    "--on", "place", type=click.Choice(["auto", "local", "slurm"]), default="auto", show_default=True,
    help="Where to run; auto: on Slurm if there is one and --site says which.",
)  # fmt: skip
@click.option(
    "--nodes", type=int, help="Number of nodes, in place of cluster.nodes; on this machine they are emulated."
)
@click.option("--ranks-per-node", type=int, help="Ranks on each node, in place of cluster.ranks_per_node.")
@set_option
@results_option
@click.option(
    "--dry-run", is_flag=True, help="Check everything and print what would run or be submitted; start nothing."
)
@json_option
@site_options
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Slurm: a variable of the ranks, as it stands.")
@click.option(
    "--pass-env", multiple=True, metavar="NAME", help="Slurm: a variable set here, whose value is written nowhere."
)
@click.option(
    "--segments", type=click.IntRange(1, 100), help="Slurm: so many jobs, one after another, until the run is done."
)
@click.option("--wait", is_flag=True, default=None, help="Slurm: return when the run has ended.")
@click.option("--follow", is_flag=True, default=None, help="Slurm: show rank 0's log until the run has ended.")
def launch(
    config: str, place: str, nodes: int | None, ranks_per_node: int | None, overrides: tuple[str, ...],
    results: Path, dry_run: bool, as_json: bool, **slurm: Any,
) -> None:  # fmt: skip
    """Run CONFIG, a shipped config's name or a file, on several ranks: here, waiting for the end, or as a Slurm job.

    \b
    Examples:
      firetrain launch squeezenet-digits --ranks-per-node 2 --set reduction.name=ring
      firetrain launch squeezenet-digits --on slurm --site mycluster --nodes 4 --ranks-per-node 2 --time 00:30:00
    """
    from rich.console import Console

    from firetrain.config import load_config
    from firetrain.errors import UserError
    from firetrain.launch.job import launch_local, refuse_misfits, world_of

    given = {"cluster.nodes": nodes, "cluster.ranks_per_node": ranks_per_node}
    shorthand = [f"{key}={value}" for key, value in given.items() if value is not None]
    loaded = load_config(config, [*overrides, *shorthand])
    refuse_misfits(loaded)
    console = Console(stderr=as_json)
    if choose_place(place, slurm, console) == "slurm":
        _on_slurm(loaded, results, dry_run, as_json, console, slurm)
        return
    useless = [f"--{name.replace('_', '-')}" for name in _SLURM if slurm[name]]
    if useless:
        raise UserError(f"{', '.join(useless)}: only with --on slurm; this run is on this machine")
    if dry_run:
        click.echo(f"# {world_of(loaded)} on this machine; nothing was started")
        click.echo(loaded.annotated(), nl=False)
        return
    run = launch_local(loaded, results, console)
    if as_json:
        echo_json({"run": str(run.path), **run.summary()})
    else:
        _tell(run, console)


def choose_place(place: str, slurm: dict[str, Any], console: Console) -> str:
    """auto takes Slurm only if it is there and a site is named, and says so."""
    from shutil import which

    if place != "auto":
        return place
    if slurm["site"] and which("sbatch"):
        console.print(
            f"on Slurm: sbatch is here and the site is {slurm['site']} (--on local to stay here)", highlight=False
        )
        return "slurm"
    return "local"


def _on_slurm(
    loaded: Loaded, results: Path, dry_run: bool, as_json: bool, console: Console, given: dict[str, Any]
) -> None:
    from firetrain.errors import FiretrainError, UserError
    from firetrain.launch.batch import script
    from firetrain.launch.fit import variables
    from firetrain.launch.job import launch_slurm, request_of
    from firetrain.launch.watch import state_of, wait_for

    if as_json and given["follow"]:
        raise UserError("--follow prints a log, --json a result: take --wait with --json")
    name = given["site"] or "generic"
    site = site_of(name, {key: given[key] for key in REPLACED})
    request = request_of(loaded, results, site, variables(given["env"], given["pass_env"]), given["segments"] or 1)
    if dry_run:
        click.echo(script(request), nl=False)
        return
    done = launch_slurm(loaded, request, name)
    shown = _relative(done.run.path)
    if as_json and not given["wait"]:
        echo_json({"run": str(done.run.path), "jobs": done.jobs, "estimated_start": done.estimated_start or None})
    elif not as_json:
        start = f", estimated start {done.estimated_start}" if done.estimated_start else ""
        jobs = ", ".join(map(str, done.jobs))
        lines = [
            f"job {jobs} submitted: {request.world}, {site.time}, partition {site.partition or 'default'}{start}",
            f"run {done.run.path}",
            "\nnext:",
            *(f"  firetrain {command} {shown}" for command in ("status", "logs --follow", "cancel")),
        ]
        for line in lines:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    if given["wait"] or given["follow"]:
        complete = wait_for(done.run, site.poll_every_s, click.echo if given["follow"] else None)
        if as_json:
            echo_json({"run": str(done.run.path), **done.run.summary()})
        elif complete:
            _tell(done.run, console)
        if not complete:
            state = state_of(done.run)
            raise FiretrainError("\n".join(filter(None, [f"{done.run.name}: {state.text}", state.failure])))


def site_of(name: str, replaced: dict[str, Any]) -> Site:
    """A site with what the command line says in place of its own; the same checks for both."""
    from firetrain.config.document import Document, Place
    from firetrain.config.load import validate
    from firetrain.launch.site import Site, load_site

    given = {key: value for key, value in replaced.items() if value is not None}
    data = load_site(name).model_dump() | given
    places = {(key,): Place(f"--{key} {value}") for key, value in given.items()}
    return validate(Document(name, data, places), Site)  # type: ignore[arg-type]


def _tell(run: Run, console: Console) -> None:
    """What came of it."""
    from firetrain.report.summary import details, headline, next_commands, time_table

    if not run.summary():
        reason = run.facts().get("reason", "")
        console.print(f"{run.facts()['state']}: {reason}", highlight=False, markup=False, soft_wrap=True)
        return
    console.print(f"\n[bold]{headline(run)}[/bold]", highlight=False)
    for line in details(run):
        console.print(line, highlight=False)
    console.print()
    console.print(time_table(run))
    console.print("\nnext:", highlight=False)
    for line in next_commands(run):
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


def _relative(path: Path) -> str:
    import os
    import shlex

    return shlex.quote(os.path.relpath(path))
