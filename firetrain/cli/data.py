"""The `data` commands."""

from __future__ import annotations

import click

from firetrain.cli.options import config_argument, echo_json, json_option, set_option
from firetrain.limits import MOST_IMAGES


@click.group()
def data() -> None:
    """Inspect data sets."""


@data.command()
@config_argument
@set_option
@click.option(
    "--sample",
    type=click.IntRange(1, MOST_IMAGES),
    default=200,
    show_default=True,
    help="Images of each split to decode.",
)
@json_option
def info(config: str, overrides: tuple[str, ...], sample: int, as_json: bool) -> None:
    """Count the images and classes of CONFIG's data, and decode a sample to find image sizes and unreadable files.

    \b
    Example:
      firetrain data info squeezenet-cifar10 --set data.root=/data/cifar10
    """
    from firetrain.config import load_config
    from firetrain.data.catalogue import open_dataset
    from firetrain.data.inspect import inspect_split

    dataset = open_dataset(load_config(config, overrides).config.data)
    splits = {"train": inspect_split(dataset.train, sample), "test": inspect_split(dataset.test, sample)}
    if as_json:
        echo_json({"name": dataset.name, "classes": list(dataset.classes), **splits})
        return
    names = ", ".join(dataset.classes[:10]) + (", ..." if len(dataset.classes) > 10 else "")
    click.echo(f"{dataset.name}: {len(dataset.classes)} classes: {names}")
    for name, facts in splits.items():
        smallest, largest = facts["images_per_class"]
        click.echo(f"{name}: {facts['images']:,} images, {smallest} to {largest} per class")
        click.echo(f"  of {facts['sampled']} decoded: height x width from {facts['smallest']} to {facts['largest']}")
        click.echo(f"  unreadable: {len(facts['bad'])}")
        for line in facts["bad"][:10]:
            click.echo(f"    {line}")
