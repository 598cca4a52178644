"""The `simulate` command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from firetrain.cli.garbage import collect_as_usual
from firetrain.cli.options import (
    Number,
    config_argument,
    echo_json,
    json_option,
    policies_option,
    print_table,
    refuse_given,
    set_option,
    workers_option,
)
from firetrain.limits import MOST_OF_ANYTHING, MOST_PLACED_RANKS

if TYPE_CHECKING:
    from firetrain.config import Config
    from firetrain.simulate.machine import Machine
    from firetrain.simulate.virtual_cluster import StepTimes


@click.command()
@config_argument
@policies_option
@workers_option
@click.option("--stragglers", metavar="SHAREXFACTOR", help="0.05x5: 5 % of the gradients take 5 times as long.")
@click.option(
    "--slow", metavar="WORKER:FACTOR,...", help="Workers that always take longer, 2 and 1.5 times as long: 0:2,3:1.5."
)
@click.option(
    "--profile", "profile_name", metavar="NAME|FILE",
    help="Times of gradients, their jitter, and the server's link.  [default: 1 s for a worker's share of the batch, a jitter "
    "of 0.1, no time for messages]",
)  # fmt: skip
@click.option(
    "--jitter", type=Number(0, MOST_OF_ANYTHING), help="Standard deviation of a gradient's time, relative to its mean."
)
@click.option(
    "--servers", type=click.IntRange(1, MOST_PLACED_RANKS), default=1, show_default=True, help="Number of servers."
)
@click.option(
    "--seeds", default="1", show_default=True, metavar="N,N", help="Seeds of the data's order and of the times."
)
@click.option(
    "--plots",
    type=click.Path(file_okay=False, path_type=Path),
    help="Draw accuracy, staleness, workers, and backup workers, in this folder.",
)
@set_option
@json_option
def simulate(
    config: str, policies: str, workers: int, stragglers: str | None, slow: str | None, profile_name: str | None,
    jitter: float | None, servers: int, seeds: str, plots: Path | None, overrides: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Train CONFIG with a parameter server, on a virtual clock.

    Gradients are computed for real, with the weights that their worker has pulled; only the time is simulated. The same seed
    gives the same result.

    \b
    Example:
      firetrain simulate quickstart --workers 8 --stragglers 0.05x5 --set target.max_epochs=2
    """
    from firetrain.config import load_config
    from firetrain.config.sections.strategy import DATA_PARALLEL
    from firetrain.config.spec import parse_list
    from firetrain.errors import UserError
    from firetrain.launch.refusals import refuse_unreadable_data
    from firetrain.records.file import refuse_impossible
    from firetrain.report.simulated import of_outcomes
    from firetrain.report.simulated_plots import write_plots
    from firetrain.simulate.simulation import outcomes

    loaded = load_config(config, overrides).config
    if loaded.strategy.servers:
        raise UserError(
            "simulate takes its policies from --policies: leave out strategy.name and strategy.parameters, or give --set "
            f"strategy.name={DATA_PARALLEL} --set 'strategy.parameters={{}}'"
        )
    loaded.strategy.refuse_placed("simulate")
    for given, what in ((loaded.compile, "compile"), (loaded.log.noise_scale, "log.noise_scale")):
        if given:
            raise UserError(f"simulate does not support {what}: true, as parameter servers do not; set it to false")
    refuse_unreadable_data(loaded.data)
    machine = _machine(loaded, profile_name, workers, servers)
    machine = machine._replace(times=_changed(machine.times, workers, stragglers, slow, jitter))
    names = [str(spec) for spec in parse_list(policies)] if policies else []
    if not names or len(set(names)) < len(names):
        raise UserError(f"--policies {policies!r}: expected different names, separated by commas")
    if plots:
        refuse_impossible(plots)
    collect_as_usual()
    found = list(outcomes(loaded, names, workers, _numbers(seeds), machine))
    if as_json:
        echo_json([one.as_json() for one in found])
    else:
        print_table(of_outcomes(found).text_table())
    for path in write_plots(found, plots) if plots else ():
        click.echo(f"written to {path}", err=as_json)


def _machine(config: Config, profile_name: str | None, workers: int, servers: int) -> Machine:
    from firetrain.records.profile import Profile
    from firetrain.simulate.machine import assumed, measured

    share = -(-config.batch.global_size // workers)
    if profile_name:
        return measured(config, Profile.find(profile_name), share, servers)
    refuse_given({"--servers": servers > 1}, "only with --profile; without one, messages take no time")
    return assumed(share)


def _changed(
    times: StepTimes, workers: int, stragglers: str | None, slow: str | None, jitter: float | None
) -> StepTimes:
    """The times with the command's options."""
    from dataclasses import replace

    from firetrain.errors import UserError

    share, factor = _pair(stragglers, "x", "--stragglers") if stragglers else (0.0, 1.0)
    if share > 1 or factor < 1:
        raise UserError(
            f"--stragglers {stragglers}: expected a share of at most 1, and a factor of at least 1, as in 0.05x5"
        )
    return replace(
        times,
        jitter=times.jitter if jitter is None else jitter,
        slow_share=share,
        slow_factor=factor,
        factors=_factors(slow or "", workers),
    )


def _pair(text: str, separator: str, option: str) -> tuple[float, float]:
    """Two numbers from 0 to a limit."""
    from firetrain.errors import UserError

    first, _, second = text.partition(separator)
    try:
        found = float(first), float(second)
    except ValueError:
        found = -1.0, -1.0
    if not all(0 <= one <= MOST_OF_ANYTHING for one in found):
        raise UserError(f"{option} {text}: expected two numbers of at least 0, separated by {separator!r}")
    return found


def _factors(slow: str, workers: int) -> tuple[float, ...]:
    """The factor of each worker's time."""
    from firetrain.errors import UserError

    found: dict[int, float] = {}
    for text in filter(None, slow.split(",")):
        worker, factor = _pair(text, ":", "--slow")
        if worker >= workers or worker != int(worker):
            raise UserError(f"--slow {text}: workers are numbered from 0 to {workers - 1}")
        if factor < 1 or worker in found:
            raise UserError(f"--slow {text}: expected one factor of at least 1 for each worker, as in 0:2,3:1.5")
        found[int(worker)] = factor
    return tuple(found.get(worker, 1.0) for worker in range(workers))


def _numbers(seeds: str) -> list[int]:
    from firetrain.errors import UserError

    try:
        found = [int(text) for text in seeds.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 0 or max(found) >= 1 << 32 or len(set(found)) < len(found):
        raise UserError(f"--seeds {seeds}: expected different whole numbers from 0 to 4294967295, separated by commas")
    return found
