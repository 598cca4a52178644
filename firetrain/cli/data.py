"""The `data` commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firetrain.cli.options import config_argument, echo_json, json_option, set_option
from firetrain.limits import MOST_IMAGES, MOST_PIXELS

if TYPE_CHECKING:
    from firetrain.data.images import Dataset


@click.group()
def data() -> None:
    """Inspect and pack data sets."""


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
    """Count the images of CONFIG's data, and check a sample.

    The sample is decoded, which shows image sizes and unreadable files. Exit code 2 if no image of a split can be read.

    \b
    Example:
      firetrain data info squeezenet-cifar10 --set data.root=/data/cifar10
    """
    from firetrain.config import load_config
    from firetrain.data.catalogue import open_dataset
    from firetrain.data.inspect import inspect_split
    from firetrain.errors import UserError

    dataset = open_dataset(load_config(config, overrides).config.data)
    splits = {"train": inspect_split(dataset.train, sample), "test": inspect_split(dataset.test, sample)}
    if as_json:
        echo_json({"name": dataset.name, "classes": list(dataset.classes), **splits})
    else:
        _print(dataset, splits)
    for name, facts in splits.items():
        if len(facts["bad"]) == facts["sampled"]:
            raise UserError(f"{dataset.name}, {name}: not one of {facts['sampled']} images can be read")


def _print(dataset: Dataset, splits: dict[str, dict[str, Any]]) -> None:
    names = ", ".join(dataset.classes[:10]) + (", ..." if len(dataset.classes) > 10 else "")
    click.echo(f"{dataset.name}: {len(dataset.classes)} classes: {names}")
    for name, facts in splits.items():
        smallest, largest = facts["images_per_class"]
        empty = f", none in {facts['empty_classes']} of them" if facts["empty_classes"] else ""
        click.echo(f"{name}: {facts['images']:,} images, {smallest} to {largest} per class{empty}")
        click.echo(f"  of {facts['sampled']} decoded: height x width from {facts['smallest']} to {facts['largest']}")
        click.echo(f"  unreadable: {len(facts['bad'])}")
        for line in facts["bad"][:10]:
            click.echo(f"    {line}")


@data.command()
@config_argument
@set_option
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="New folder to write to.")
@click.option(
    "--shorter-side",
    type=click.IntRange(8, MOST_PIXELS),
    help="Reduce larger images to this many pixels on their shorter side.  [default: keep their size]",
)
@click.option(
    "--shard-mib", type=click.IntRange(1, 1 << 20), default=4096, show_default=True, help="Size of a shard, in MiB."
)
@json_option
def pack(
    config: str, overrides: tuple[str, ...], out: Path, shorter_side: int | None, shard_mib: int, as_json: bool
) -> None:
    """Decode the images of CONFIG's data once, into large files.

    Images are read from these files by offset. Training with data.name=packed and data.root=FOLDER reads the same pixels in the
    same order, if their size was kept.

    \b
    Example:
      firetrain data pack squeezenet-digits --out packed
    """
    import os

    from firetrain.config import load_config
    from firetrain.data.catalogue import open_dataset
    from firetrain.data.packed import pack as write
    from firetrain.words import counted

    section = load_config(config, overrides).config.data
    threads, skip = section.readers(os.cpu_count() or 1), section.on_bad_image == "skip"
    content = write(open_dataset(section), out, shorter_side, shard_mib << 20, threads=threads, skip_bad=skip)
    if as_json:
        echo_json(content)
        return
    for name, split in content["splits"].items():
        total, shards = sum(split["shards_bytes"]), counted(len(split["shards_bytes"]), "shard")
        left_out = f", {split['left_out']:,} unreadable ones left out" if split["left_out"] else ""
        click.echo(f"{name}: {split['images']:,} images, {total / 1e6:,.1f} MB in {shards}{left_out}")
    click.echo(f"to train on them: --set data.name=packed --set data.root={out}")
