"""The `bench server` command."""

from __future__ import annotations

import click

from firetrain.cli.garbage import collect_as_usual
from firetrain.cli.options import (
    config_argument,
    echo_json,
    json_option,
    policies_option,
    repeats_type,
    set_option,
    workers_option,
)


@click.command()
@config_argument
@policies_option
@workers_option
@click.option("--pushes", type=repeats_type(10), default=200, show_default=True, help="Pushes to time.")
@set_option
@json_option
def server(config: str, policies: str, workers: int, pushes: int, overrides: tuple[str, ...], as_json: bool) -> None:
    """Measure the cost of a push to the parameter server of a model.

    Prints the time in which the server decides about a gradient, beside the time of copying that gradient once.

    \b
    Example:
      firetrain bench server squeezenet-digits
    """
    from firetrain.bench.server import bench_server
    from firetrain.config import load_config
    from firetrain.config.spec import parse_list

    collect_as_usual()
    loaded = load_config(config, overrides).config
    found = list(bench_server(loaded, [str(spec) for spec in parse_list(policies)], workers, pushes))
    if as_json:
        echo_json(found)
        return
    click.echo(f"{found[0]['bytes'] / 2**20:.1f} MiB a push, {workers} workers, medians of {pushes} pushes")
    width = max(len(one["policy"]) for one in found)
    for one in found:
        click.echo(
            f"{one['policy']:<{width}}  decide {1e6 * one['decide_s']:6.1f} us   apply {1e3 * one['apply_s']:6.2f} ms   "
            f"copy {1e3 * one['copy_s']:6.2f} ms   decide / copy {one['decide_of_copy']:.1%}"
        )
