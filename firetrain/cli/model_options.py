"""The options of commands that make a model without a config."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from firetrain.limits import MOST_CLASSES, MOST_PIXELS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


def model_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--classes, --image-size, --stem and --argument, which is called `arguments`."""
    for option in (
        click.option(
            "--argument", "arguments", multiple=True, metavar="NAME=VALUE", help="Of a model of your own; may be repeated."
        ),
        click.option(
            "--stem", type=click.Choice(["imagenet", "small"]), default="imagenet", show_default=True,
            help="First layers: for ImageNet, or for small images.",
        ),
        click.option(
            "--image-size", type=click.IntRange(8, MOST_PIXELS), default=224, show_default=True, help="Pixels on each side."
        ),
        click.option(
            "--classes", type=click.IntRange(2, MOST_CLASSES), default=1000, show_default=True, help="Number of classes."
        ),
    ):  # fmt: skip
        function = option(function)
    return function


def arguments_of(texts: Iterable[str]) -> dict[str, Any]:
    """The arguments NAME=VALUE, whose values are written as in YAML; UserError for one that is none."""
    return dict(map(_argument, texts))


def _argument(text: str) -> tuple[str, Any]:
    from yaml import YAMLError

    from firetrain.config.document import read_scalar
    from firetrain.errors import UserError

    name, equals, value = text.partition("=")
    try:
        found = read_scalar(value)
    except YAMLError:
        found = None
    if not (equals and name.isidentifier() and isinstance(found, str | int | float | bool)):
        raise UserError(f"--argument {text}: expected NAME=VALUE, with a text, number or boolean")
    return name, found
