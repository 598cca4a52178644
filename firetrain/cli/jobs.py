"""The options of commands that may run as Slurm jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from firetrain.launch.job import JobSettings
    from firetrain.launch.site import Site

# options that replace a setting of the site
REPLACED = ("time", "partition", "account", "qos", "exclude", "launcher")
OF_JOBS = ("site", *REPLACED, "env", "pass_env")

where_option = click.option(
    "--on", "where", type=click.Choice(["auto", "local", "slurm"]), default="auto", show_default=True,
    help="Where to run. auto: on Slurm, if it is installed and a site is given; otherwise local.",
)  # fmt: skip


def site_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--site, the options that replace settings of the site, and the variables of a job."""
    options = (
        click.option("--site", help="Slurm: the cluster's settings, a name (firetrain site list) or a file."),
        click.option("--time", help="Slurm: walltime as [days-]hours:minutes:seconds."),
        *(
            click.option(f"--{key}", help=f"Slurm: {text} (overrides the site's).")
            for key, text in (("partition", "partition"), ("account", "account"), ("qos", "quality of service"))
        ),
        click.option("--exclude", metavar="NODES", help="Slurm: nodes to exclude, for instance node[3-4],node9."),
        click.option("--launcher", help="Slurm: what starts the ranks: srun, torchrun, mpirun or horovodrun."),
        click.option(
            "--env", multiple=True, metavar="NAME=VALUE", help="Slurm: set an environment variable of the ranks."
        ),
        click.option(
            "--pass-env",
            multiple=True,
            metavar="NAME",
            help="Slurm: pass an environment variable on without writing its value to a file.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def choose_where(where: str, slurm: dict[str, Any], console: Console) -> str:
    """`local` or `slurm`; `auto` chooses Slurm only if it is installed and a site is given, and prints that.

    UserError if there is no such site.
    """
    from shutil import which

    from firetrain.launch.site import load_site

    if where != "auto":
        return where
    if slurm["site"] and which("sbatch"):
        load_site(slurm["site"])
        console.print(f"running on Slurm, site {slurm['site']}; --on local runs on this machine", highlight=False)
        return "slurm"
    return "local"


def site_name(text: str) -> str:
    """The name of a site, or the absolute path of its file."""
    from firetrain.config.files import user_path
    from firetrain.launch.site import is_path

    return str(user_path(text).absolute()) if is_path(text) else text


def site_of(name: str, replaced: dict[str, Any]) -> Site:
    """The site, with settings overridden by the command line's; both are checked alike."""
    from firetrain.config.document import Document, Position
    from firetrain.config.validation import validate
    from firetrain.launch.site import Site, load_site

    given = {key: value for key, value in replaced.items() if value is not None}
    data = load_site(name).model_dump() | given
    positions = {(key,): Position(f"--{key} {value}") for key, value in given.items()}
    return validate(Document(name, data, positions), Site)  # type: ignore[arg-type]


def job_settings(given: Mapping[str, Any]) -> JobSettings:
    """What the options of jobs say. UserError for mistakes in them; variables that the ranks would miss are printed."""
    from firetrain.launch.fit import variables
    from firetrain.launch.job import JobSettings

    name, passed = site_name(given["site"] or "generic"), tuple(given["pass_env"])
    site = site_of(name, {key: given[key] for key in REPLACED})
    own = variables(given["env"], passed)
    note_variables(own, passed)
    return JobSettings(site, name, own, passed, {key: given[key] for key in OF_JOBS if given[key]})


def note_variables(own: Mapping[str, str], passed: tuple[str, ...]) -> None:
    """Print which variables that affect ranks are set here but not passed to the job."""
    from firetrain.launch.slurm import left_behind

    if left := [name for name in left_behind(passed) if name not in own]:
        names = ", ".join(left)
        click.echo(f"note: set here but not passed to the job: {names} (--pass-env NAME passes one on)", err=True)
