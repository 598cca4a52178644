"""The layers of a config's model, for commands that place it on ranks without training it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from firetrain.errors import UserError

if TYPE_CHECKING:
    from firetrain.config import Config
    from firetrain.strategy import Layer

_ASSUMED_CLASSES = 1000


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
