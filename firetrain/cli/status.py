"""The `status`, `logs` and `cancel` commands."""

from __future__ import annotations

from pathlib import Path

import click

from firetrain.cli.options import echo_json, json_option
from firetrain.limits import MOST_RANKS

run_argument = click.argument("path", metavar="RUN", type=click.Path(path_type=Path))


@click.command()
@run_argument
@click.option("--watch", is_flag=True, help="Repeat until the run has ended, as often as the site allows.")
@json_option
def status(path: Path, watch: bool, as_json: bool) -> None:
    """Show the state of RUN, the folder of a run.

    That is its progress, why it waits, or the first failed rank with the end of its log.

    \b
    Example:
      firetrain status results/squeezenet-digits-20260102-030405-1a2b3c4d
    """
    import time
    from dataclasses import asdict

    from firetrain.launch.site import load_site
    from firetrain.launch.status import state_of
    from firetrain.records import Run

    run = Run.open(path)
    every_s = load_site(run.facts().get("site", "generic")).poll_every_s
    while True:
        state = state_of(run, every_s)
        if as_json:
            echo_json({"run": str(run.path), **asdict(state)})
        else:
            click.echo(f"{run.name}: {state.text}")
            for job in state.jobs:
                where = f" on {job.nodes}" if job.nodes else ""
                click.echo(f"  job {job.id}: {job.state.lower()}, {job.elapsed} of {job.limit}{where}")
            if state.failure:
                click.echo(state.failure)
        if not watch or state.ended:
            return
        time.sleep(every_s)


@click.command()
@run_argument
@click.option(
    "--rank",
    "ranks",
    type=click.IntRange(0, MOST_RANKS),
    multiple=True,
    help="Rank to show; default: rank 0 and the failed ranks.",
)
@click.option("--attempt", type=click.IntRange(0, MOST_RANKS), help="Attempt to show; default: the newest.")
@click.option(
    "--follow", is_flag=True, help="Follow until the run has ended, across requeues; Ctrl-C does not stop the run."
)
def logs(path: Path, ranks: tuple[int, ...], attempt: int | None, follow: bool) -> None:
    """Show what the ranks of RUN printed.

    \b
    Example:
      firetrain logs results/squeezenet-digits-20260102-030405-1a2b3c4d --rank 3
    """
    from contextlib import suppress

    from firetrain.errors import UserError
    from firetrain.launch.logs import chosen_logs
    from firetrain.launch.site import load_site
    from firetrain.launch.wait import wait_for
    from firetrain.records import Run

    run = Run.open(path)
    if follow:
        if ranks or attempt is not None:
            raise UserError("--follow always shows rank 0 of the newest attempt: omit --rank and --attempt")
        with suppress(KeyboardInterrupt):
            wait_for(run, load_site(run.facts().get("site", "generic")).poll_every_s, click.echo)
        return
    for heading, text in chosen_logs(run, ranks, attempt):
        click.echo(f"--- {heading} ---")
        click.echo(text, nl=False)


@click.command()
@run_argument
@click.option("--now", is_flag=True, help="End the ranks immediately, without saving a checkpoint.")
@json_option
def cancel(path: Path, now: bool, as_json: bool) -> None:
    """Cancel RUN: its ranks save a checkpoint and exit.

    Queued jobs are removed.

    \b
    Example:
      firetrain cancel results/squeezenet-digits-20260102-030405-1a2b3c4d
    """
    from firetrain.launch.cancel import cancel as cancel_run
    from firetrain.records import Run

    run = Run.open(path)
    state = cancel_run(run, now)
    if as_json:
        echo_json({"run": str(run.path), "state": state.word, "told": state.text})
        return
    click.echo(state.text)
