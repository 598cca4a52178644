"""The layers of a config's model, for commands that place it on ranks without training it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from firetrain.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from firetrain.cluster import World
    from firetrain.config import Config
    from firetrain.strategy import Layer

_ASSUMED_CLASSES = 1000


def refuse_unplaceable(config: Config, world: World) -> None:
    """UserError if the config's strategy places a model on ranks, and does not suit the model or the ranks.

    What suits 1,000 classes suits fewer, so that the data need not be here.
    """
    strategy = config.strategy
    if strategy.is_data_parallel or strategy.servers or (strategy.profile and world.size == 1):
        return
    from firetrain.models.catalogue import make_model
    from firetrain.models.graph import trace
    from firetrain.models.own import refuse_changed_by_placement
    from firetrain.strategy import find_strategy
    from firetrain.strategy.check import refuse_several_readers, refuse_untrainable

    model = make_model(config.model.model_copy(update={"weights": None}), _ASSUMED_CLASSES, config.seed).train()
    try:
        layers = trace(model, config.data.image_size).layers
    except UserError as error:
        raise UserError(
            f"strategy {strategy.spec} does not suit the model, which data-parallel trains: {error}"
        ) from error
    if strategy.profile:  # the placement is searched at start
        refuse_several_readers(layers)
    else:
        placement = find_strategy(str(strategy.spec))(layers, world)
        refuse_untrainable(placement, config.batch.global_size)
        if placement.is_data_parallel:  # of a placement file
            return
    if config.model.own:
        refuse_changed_by_placement(model, config.model.name, config.data.image_size)


def layers_of(config: Config) -> tuple[Layer, ...]:
    """The layers of the config's model in training mode.

    If its data is not here, 1,000 classes are assumed, and that is said on stderr.
    """
    from firetrain.data.catalogue import open_dataset
    from firetrain.models.catalogue import make_model
    from firetrain.models.graph import trace

    try:
        classes = len(open_dataset(config.data).classes)
    except UserError as error:
        classes = _ASSUMED_CLASSES
        click.echo(f"{classes:,} classes are assumed, because the data cannot be read: {error}", err=True)
    return trace(make_model(config.model, classes, config.seed).train(), config.data.image_size).layers


def refuse_unwritable_files(svg: Path | None, placement: Path | None) -> None:
    """CannotCreate if a file cannot be written; UserError if a placement file's name has another ending than YAML's."""
    from firetrain.config.names import is_placement_file
    from firetrain.records.file import refuse_unwritable

    if placement and not is_placement_file(str(placement)):
        raise UserError(f"--out {placement}: the name of a placement file must end in .yaml or .yml")
    for path in filter(None, (svg, placement)):
        refuse_unwritable(path)


def found_placement(config: Config, world: World) -> str:
    """The recommended placement by the profile of the strategy `auto`, as the text of a placement file; prints what was found."""
    from firetrain.predict.prediction import UNCALIBRATED
    from firetrain.records.profile import Profile
    from firetrain.search.searches import searches
    from firetrain.search.table import remarks

    profile = Profile.find(config.strategy.profile or "")
    (found,) = searches(config, profile, layers_of, [world])
    click.echo(f"strategy {config.strategy.spec}: {found.written().step_ns / 1e6:.2f} ms a step predicted")
    for line in remarks(found):
        click.echo(line)
    if not profile.calibrated:
        click.echo(f"note: {UNCALIBRATED}")
    return found.file()
