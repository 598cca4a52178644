"""The `predict` command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firetrain.cli.options import (
    amount_type,
    config_argument,
    echo_json,
    json_option,
    print_table,
    ranks_type,
    refuse_given,
    set_option,
    what_if_option,
)
from firetrain.cli.predict_check import refuse_with_check, show_checks
from firetrain.limits import MOST_IMAGES

if TYPE_CHECKING:
    from firetrain.config import Config
    from firetrain.predict.prediction import Prediction
    from firetrain.strategy import Layer

_REDUCTIONS = "ring,tree,double-tree,pipelined-tree,halving-doubling,torus,hierarchical,direct,parameter-server"


@click.command()
@config_argument
@click.option(
    "--profile",
    "profile_name",
    metavar="NAME|FILE",
    help="Measured profile; without one, link and compute speeds are assumed.",
)
@click.option(
    "--ranks", default="1:1024", show_default=True, metavar="N,N|N:N", help="Numbers of ranks; A:B doubles from A to B."
)
@click.option(
    "--ranks-per-node", type=ranks_type, help="Ranks on each node.  [default: the profile's, otherwise the config's]"
)
@click.option(
    "--reductions",
    default=_REDUCTIONS,
    metavar="NAME,NAME",
    help="Reductions, with parameters as name:key=value.  [default: all that have a formula]",
)
@click.option(
    "--strategies", metavar="NAME,NAME", help="Strategies, with parameters as name:key=value.  [default: the config's]"
)
@click.option(
    "--per-rank",
    type=click.IntRange(1, MOST_IMAGES),
    help="Images per rank; the global batch then grows with the ranks.",
)
@what_if_option
@click.option("--epochs", metavar="BATCH:EPOCHS,...", help="Epochs to the target for given global batches.")
@click.option(
    "--runs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Recorded runs from which these epochs are taken.",
)
@click.option("--images", type=click.IntRange(1, 1 << 40), help="Images in an epoch.")
@click.option("--mtbf-h", type=amount_type, help="Hours between failures of a node.")
@click.option("--checkpoint-s", type=amount_type, help="Seconds to write a checkpoint, with --mtbf-h.  [default: 10]")
@click.option("--price", type=amount_type, help="Price of a node-hour.")
@click.option("--watts", type=amount_type, help="Power of a rank, in watts.")
@click.option("--explain", is_flag=True, help="Print the formulas with their numbers.")
@click.option(
    "--plots",
    type=click.Path(file_okay=False, path_type=Path),
    help="Plot scaling, parts and crossovers to this folder.",
)
@click.option(
    "--check", "checks", type=click.Path(path_type=Path), metavar="RUN", multiple=True,
    help="Compare the prediction with a recorded run; may be repeated.",
)  # fmt: skip
@set_option
@json_option
def predict(
    config: str, profile_name: str | None, explain: bool, plots: Path | None, checks: tuple[Path, ...],
    overrides: tuple[str, ...], as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Predict CONFIG's step time, scaling and time-to-accuracy.

    The prediction is for many ranks, strategies and reductions, from a profile.

    \b
    Examples:
      firetrain predict googlenet-firecaffe --profile titan-k20 --ranks 1:128
      firetrain predict alexnet-thesis-tiny-imagenet --strategies data-parallel,one-weird-trick --ranks 2:8
      firetrain predict squeezenet-b512 --ranks 1:131072 --per-rank 4 --what-if bandwidth=x2
      firetrain predict squeezenet-digits --profile profile.json --check results/RUN --plots plots
    """
    from firetrain.config import load_config
    from firetrain.config.label import model_label
    from firetrain.config.sections.strategy import DATA_PARALLEL
    from firetrain.predict import prediction as product
    from firetrain.records.profile import Profile

    loaded = load_config(config, overrides).config
    profile = Profile.find(profile_name or "uncalibrated")
    checked: list[dict[str, Any]] = []
    if checks:
        refuse_with_check(options, explain=explain, overrides=overrides, plots=plots)
        checked = show_checks(checks, profile, model_label(loaded.model, loaded.data), as_json=as_json)
        if not plots:
            return
    _refuse_useless_options(options, explain=explain, as_json=as_json)
    options["strategies"] = options["strategies"] or str(loaded.strategy.spec)
    layers = _layers(loaded, options["strategies"])
    reductions = [one["reduction"] for one in checked if one["strategy"] == DATA_PARALLEL]
    found = product.predict(loaded, profile, product.Asked(**options), reductions, layers)
    if not checks:
        _show(found, explain, as_json)
    if plots:
        _draw(found, plots, with_history=bool(checks))


def _refuse_useless_options(options: dict[str, Any], *, explain: bool, as_json: bool) -> None:
    """UserError if an option was given that would have no effect with, or without, another one."""
    if as_json:
        refuse_given({"--explain": explain}, "not with --json, which includes the parts")
    if not options["mtbf_h"]:
        refuse_given({"--checkpoint-s": options["checkpoint_s"]}, "only with --mtbf-h")
    if options["epochs"]:
        refuse_given({"--runs": options["runs"]}, "not with --epochs: give one of them")


def _layers(config: Config, strategies: str) -> tuple[Layer, ...]:
    """The layers of the model, if a strategy needs them: tracing it loads torch. UserError for an unknown strategy."""
    from firetrain.cli.layers import layers_of
    from firetrain.config.names import parse_strategies
    from firetrain.config.sections.strategy import DATA_PARALLEL

    return layers_of(config) if any(spec.name != DATA_PARALLEL for spec in parse_strategies(strategies)) else ()


def _show(found: Prediction, explain: bool, as_json: bool) -> None:
    from firetrain.report.prediction import explanation, remarks, text_table

    if as_json:
        echo_json(found.as_json())
        return
    print_table(text_table(found.rows))
    for line in (*remarks(found), *(explanation(found) if explain else ())):
        click.echo(line)


def _draw(found: Prediction, folder: Path, *, with_history: bool) -> None:
    from firetrain.predict.check import history
    from firetrain.report.prediction_plot import write_plots

    title = "" if found.profile.calibrated else "UNCALIBRATED: link and compute speeds are assumed"
    checked = history(Path()) if with_history else ()
    for path in write_plots(found.rows, found.predictor, found.question, folder, title, checked):
        click.echo(path, err=True)
