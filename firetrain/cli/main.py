"""The `firetrain` command."""

from __future__ import annotations

import errno
from typing import Any

import click

from firetrain import __version__
from firetrain.cli import (
    bench,
    compare,
    config,
    data,
    doctor,
    launch,
    model,
    predict,
    preflight,
    report,
    site,
    status,
    topology,
    train,
    watch,
)
from firetrain.errors import CannotWrite, FiretrainError


class Commands(click.Group):
    """A group whose commands' failures are told in words; `--debug` shows where they came from."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; exit with the failure's own code."""
        try:
            return super().invoke(ctx)
        except FiretrainError as error:
            if ctx.params.get("debug"):
                raise
            click.echo(f"firetrain: {error}", err=True)
            ctx.exit(error.exit_code)
        except OSError as error:
            if ctx.params.get("debug") or error.errno in (None, errno.EPIPE):
                raise  # a closed pipe is click's to deal with
            where = f"{error.filename}: " if error.filename else ""
            click.echo(f"firetrain: {where}{error.strerror}; --debug shows where this came from", err=True)
            ctx.exit(CannotWrite.exit_code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def main(debug: bool) -> None:
    """Train convolutional networks data-parallel, choose how gradients are reduced, tell the time-to-accuracy.

    \b
    Start with:
      firetrain launch quickstart
      firetrain config list
    """


for command in (
    launch.launch, compare.compare, train.train, train.parts, status.status, status.logs, status.cancel, report.report,
    config.config, topology.topology, model.model, data.data, bench.bench, site.site, doctor.doctor, predict.predict,
    preflight.preflight,
    watch.watch,
):  # fmt: skip
    main.add_command(command)
