"""The `resume` command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from firetrain.cli.jobs import site_options, where_option
from firetrain.cli.launch import dry_run_option, launch, of_waiting, segments_option
from firetrain.cli.options import json_option, set_option


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@where_option
@set_option
@dry_run_option
@json_option
@site_options
@segments_option
@of_waiting
def resume(run: Path, **options: Any) -> None:
    """Resume RUN from its newest checkpoint, like launch --resume RUN.

    --set changes its strategy or reduction, or makes it longer: the learning rate then follows its schedule over the new length.
    A run that is complete can be made longer if it has saved checkpoints (checkpoint.every_epochs or every_steps).

    \b
    Examples:
      firetrain resume results/squeezenet-digits-20260102-030405-1a2b3c4d
      firetrain resume results/squeezenet-digits-20260102-030405-1a2b3c4d --set target.max_epochs=40
    """
    unset = dict.fromkeys(("config", "nodes", "ranks_per_node", "requeue", "name"))
    click.get_current_context().invoke(launch, resume=run, command=(), results=Path("results"), **unset, **options)
