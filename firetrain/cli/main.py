"""The `firetrain` command."""

from __future__ import annotations

import errno
import re
import signal
import traceback
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from firetrain import __version__
from firetrain.cli import (
    bench,
    compare,
    compress,
    config,
    data,
    doctor,
    launch,
    model,
    predict,
    preflight,
    report,
    resume,
    search,
    simulate,
    site,
    status,
    strategy,
    topology,
    train,
    watch,
)
from firetrain.cli.ranks import ARGUMENTS
from firetrain.errors import CannotWrite, FiretrainError, control_character, out_of_memory, shortened

_EMPTY_OPTION = re.compile(r"--[a-z][a-z-]*=")


class Commands(click.Group):
    """A command group that prints errors without a traceback, unless `--debug` is given."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Store the words of the command line, for commands that start themselves again as ranks.

        UsageError if one of them contains a control character, because outputs and records repeat them.
        """
        words = list(args)
        if not extra.get("resilient_parsing"):  # of completion
            _refuse_empty(words[: words.index("--")] if "--" in words else words)
        for word in words:
            if character := control_character(word):
                raise click.UsageError(shortened(f"{word}: contains the control character {character}"))
        context = super().make_context(info_name, args, parent, **extra)
        context.meta[ARGUMENTS] = words
        return context

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; exit with the code of the failure."""
        try:
            Path.cwd()  # libraries of torch end the process without one
            return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort):
            click.echo("firetrain: interrupted", err=True)
            ctx.exit(128 + signal.SIGINT)
        except click.UsageError as error:
            raise click.UsageError(shortened(error.format_message()), error.ctx) from None
        except FiretrainError as error:
            _fail(ctx, str(error), error.exit_code)
        except (MemoryError, RuntimeError) as error:
            if not (text := out_of_memory(error)):
                raise
            _fail(ctx, text, FiretrainError.exit_code)
        except OSError as error:
            if error.errno in (None, errno.EPIPE):
                raise  # click handles a closed pipe
            if error.errno == errno.ENOENT and error.filename is None:  # of getcwd
                _fail(ctx, "the current folder has been deleted: change to another one", FiretrainError.exit_code)
            where = f"{error.filename}: " if error.filename else ""
            # what is not there should have been read
            kind = FiretrainError if error.errno in (errno.ENOENT, errno.ENOTDIR) else CannotWrite
            _fail(ctx, f"{where}{error.strerror} (--debug shows the traceback)", kind.exit_code)


def _refuse_empty(words: Sequence[str]) -> None:
    """UsageError for an empty option or argument, as where a variable of the shell is not set."""
    for before, word in pairwise(("", *words)):
        if not word or _EMPTY_OPTION.fullmatch(word):
            option = word.removesuffix("=") or before
            what = f"what follows {option}" if option.startswith("-") else "an argument"
            raise click.UsageError(f"{what} is empty: give a value, or leave it out")


def _fail(ctx: click.Context, message: str, exit_code: int) -> None:
    """End with the message of the exception that is being handled; `--debug` adds its traceback."""
    if ctx.params.get("debug"):
        traceback.print_exc()
    click.echo(f"firetrain: {shortened(message)}", err=True)
    ctx.exit(exit_code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def main(debug: bool) -> None:
    """Train convolutional networks on many ranks, choose placement and gradient reduction, and measure the time-to-accuracy.

    \b
    Start with:
      firetrain launch quickstart
      firetrain config list
    """


for command in (
    launch.launch, compare.compare, train.train, train.trials, status.status, status.logs, status.cancel, report.report,
    config.config, topology.topology, strategy.strategy, model.model, data.data, bench.bench, site.site, doctor.doctor,
    predict.predict, search.search, simulate.simulate, compress.compress, compress.evaluate, preflight.preflight, watch.watch,
    resume.resume,
):  # fmt: skip
    main.add_command(command)
