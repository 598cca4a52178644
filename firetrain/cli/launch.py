"""firetrain launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firetrain.cli.options import (
    ConfigName,
    echo_json,
    json_option,
    refuse_given,
    results_option,
    set_option,
    was_given,
)

if TYPE_CHECKING:
    from rich.console import Console

    from firetrain.config import Loaded
    from firetrain.launch.batch import Request
    from firetrain.launch.job import Submitted
    from firetrain.launch.site import Site
    from firetrain.records import Run

REPLACED = ("time", "partition", "account", "qos", "exclude", "launcher")
OF_JOBS = ("site", *REPLACED, "env", "pass_env")


def site_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--site, what may be said in place of its settings, and the variables of a job."""
    options = (
        click.option("--site", help="Slurm: the cluster's settings, a name (firetrain site list) or a file."),
        click.option("--time", help="Slurm: walltime as [days-]hours:minutes:seconds."),
        *(click.option(f"--{key}", help="Slurm: in place of the site's.") for key in ("partition", "account", "qos")),
        click.option("--exclude", metavar="NODES", help="Slurm: nodes to leave out, for instance node[3-4],node9."),
        click.option("--launcher", help="Slurm: what starts the ranks: srun, torchrun, mpirun or horovodrun."),
        click.option(
            "--env", multiple=True, metavar="NAME=VALUE", help="Slurm: a variable of the ranks, as it stands."
        ),
        click.option(
            "--pass-env",
            multiple=True,
            metavar="NAME",
            help="Slurm: a variable set here, whose value is written nowhere.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("config", type=ConfigName(), required=False)
@click.option(
    "--resume", metavar="RUN", type=click.Path(path_type=Path),
    help="In place of CONFIG: go on with a run that has ended early, from its newest checkpoint.",
)  # fmt: skip
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
@click.option(
    "--segments", type=click.IntRange(1, 100), help="Slurm: so many jobs, one after another, until the run is done."
)
@click.option("--wait", is_flag=True, default=None, help="Slurm: return when the run has ended.")
@click.option("--follow", is_flag=True, default=None, help="Slurm: show rank 0's log until the run has ended.")
def launch(
    config: str | None, resume: Path | None, place: str, nodes: int | None, ranks_per_node: int | None,
    overrides: tuple[str, ...], results: Path, dry_run: bool, as_json: bool, **slurm: Any,
) -> None:  # fmt: skip
    """Run CONFIG, a shipped config's name or a file, on several ranks: here, waiting for the end, or as a Slurm job.

    Ctrl-C lets the ranks save first; a second one does not wait. What has ended early goes on with --resume.

    \b
    Examples:
      firetrain launch squeezenet-digits --ranks-per-node 2 --set reduction.name=ring
      firetrain launch squeezenet-digits --on slurm --site mycluster --nodes 4 --ranks-per-node 2 --time 00:30:00
      firetrain launch --resume results/squeezenet-digits-20260102-030405-1a2b3c4d
    """
    from rich.console import Console

    from firetrain.errors import UserError
    from firetrain.launch.job import refuse_misfits, refuse_unreadable_data, world_of
    from firetrain.launch.resume import refuse_resumption

    console = Console(stderr=as_json)
    own = {"--nodes": nodes is not None, "--ranks-per-node": ranks_per_node is not None, "--set": overrides}
    run = _run_to_resume(config, resume, {**own, "--results": was_given("results")})
    if run and run.summary():
        text = f"{run.name} is complete: there is nothing to go on with"
        console.print(text, highlight=False, markup=False, soft_wrap=True)
        _tell_end(run, as_json, console)
        return
    loaded = run.loaded() if run else _load(config, nodes, ranks_per_node, overrides)
    refuse_misfits(loaded)
    if run:
        refuse_resumption(run)
    of_jobs = {**slurm, "site": slurm["site"] or (run and run.facts().get("site"))}
    if choose_place(place, of_jobs, console) == "slurm":
        _on_slurm(loaded, run, results, dry_run, as_json, console, of_jobs)
        return
    useless = [f"--{name.replace('_', '-')}" for name in (*OF_JOBS, "segments", "wait", "follow") if slurm[name]]
    if useless:
        raise UserError(f"{', '.join(useless)}: only with --on slurm; this run is on this machine")
    if dry_run:
        refuse_unreadable_data(loaded)
        click.echo(f"# {world_of(loaded)} on this machine; nothing was started")
        click.echo(loaded.annotated(), nl=False)
        return
    from firetrain.launch.attempt import launch_local, resume_local

    if run:
        resume_local(run, console)
    _tell_end(run or launch_local(loaded, results, console), as_json, console)


def _run_to_resume(config: str | None, resume: Path | None, own: dict[str, object]) -> Run | None:
    """The run of --resume, if it is given; UserError unless there is either a config or a run."""
    from firetrain.errors import UserError
    from firetrain.records import Run

    if resume is None:
        if config is None:
            raise UserError(
                "what is to be run? Give a CONFIG (firetrain config list names some), or a run with --resume"
            )
        return None
    if config is not None:
        raise UserError(f"{config} and --resume: a run goes on with its own config; give one of them")
    refuse_given(own, "not with --resume: a run goes on as it was begun; to change it, launch RUN/config.yaml anew")
    return Run.open(resume)


def _load(config: str | None, nodes: int | None, ranks_per_node: int | None, overrides: tuple[str, ...]) -> Loaded:
    from firetrain.config import load_config

    given = {"cluster.nodes": nodes, "cluster.ranks_per_node": ranks_per_node}
    shorthand = [f"{key}={value}" for key, value in given.items() if value is not None]
    return load_config(str(config), [*overrides, *shorthand])


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
    loaded: Loaded, run: Run | None, results: Path, dry_run: bool, as_json: bool, console: Console, given: dict[str, Any]
) -> None:  # fmt: skip
    from firetrain.errors import UserError
    from firetrain.launch.batch import script
    from firetrain.launch.fit import variables
    from firetrain.launch.job import data_fault, launch_slurm, new_folder, request_of, resume_slurm

    if as_json and given["follow"]:
        raise UserError("--follow prints a log, --json a result: take --wait with --json")
    if run:  # as it was submitted, but for what is said now
        given = {key: given[key] or before for key, before in {**given, **run.facts().get("asked", {})}.items()}
    name = site_name(given["site"] or "generic")
    site = site_of(name, {key: given[key] for key in REPLACED})
    asked = {key: given[key] for key in ("site", *REPLACED, "env", "pass_env", "segments") if given[key]}
    own = variables(given["env"], given["pass_env"])
    folder = run.path if run else new_folder(loaded, results)
    request = request_of(loaded, folder, site, own, given["pass_env"], given["segments"] or 1)
    note_variables(own, given["pass_env"])
    if fault := data_fault(loaded):
        looks = (
            "its nodes are asked before anything is trained"
            if site.preflight
            else "preflight: false, so nobody looks first"
        )
        click.echo(f"note: seen from here, {fault}; {looks}", err=True)
    if dry_run:
        click.echo(script(request), nl=False)
        return
    done = resume_slurm(run, request, name, asked) if run else launch_slurm(loaded, request, name, asked)
    _tell_submitted(done, request, as_json and not given["wait"], as_json, console)
    if given["wait"] or given["follow"]:
        _wait(done.run, site.poll_every_s, given["follow"], as_json, console)


def site_name(text: str) -> str:
    """A name, or the path of a file as it holds from everywhere."""
    import os

    return str(Path(text).expanduser().absolute()) if os.sep in text or text.endswith((".yaml", ".yml")) else text


def note_variables(own: Mapping[str, str], passed: tuple[str, ...]) -> None:
    """Say which variables that are set here, and change how ranks run, the job does not get."""
    from firetrain.launch.slurm import left_behind

    if left := [name for name in left_behind(passed) if name not in own]:
        click.echo(f"note: set here, and not in the job: {', '.join(left)} (--pass-env NAME hands one on)", err=True)


def _tell_submitted(done: Submitted, request: Request, result: bool, as_json: bool, console: Console) -> None:
    shown, site = _relative(done.run.path), request.site
    if result:
        echo_json({"run": str(done.run.path), "jobs": done.jobs, "estimated_start": done.estimated_start or None})
    if as_json:
        return
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


def _wait(run: Run, poll_every_s: float, follow: bool, as_json: bool, console: Console) -> None:
    from firetrain.errors import FiretrainError
    from firetrain.launch.watch import state_of, wait_for

    complete = wait_for(run, poll_every_s, click.echo if follow else None)
    if as_json or complete:
        _tell_end(run, as_json, console)
    if not complete:
        state = state_of(run)
        raise FiretrainError("\n".join(filter(None, [f"{run.name}: {state.text}", state.failure])))


def _tell_end(run: Run, as_json: bool, console: Console) -> None:
    if as_json:
        echo_json({"run": str(run.path), **run.summary()})
    else:
        _tell(run, console)


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
        from firetrain.launch.resume import resume_command

        facts = run.facts()
        text = f"{facts['state']}: {facts.get('reason', '')}\nto go on: {resume_command(run)}"
        console.print(text, highlight=False, markup=False, soft_wrap=True)
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
