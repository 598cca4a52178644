"""The `model` commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from firetrain.cli.model_options import arguments_of, model_options
from firetrain.cli.options import echo_json, json_option, was_given
from firetrain.limits import MOST_IMAGES


@click.group()
def model() -> None:
    """List and inspect models."""


@model.command("list")
@json_option
def list_models(as_json: bool) -> None:
    """List the models, with their numbers of parameters.

    \b
    Example:
      firetrain model list
    """
    from firetrain.config.names import MODELS as PACKAGES
    from firetrain.config.names import entry_point, installed_names
    from firetrain.models.catalogue import MODELS

    lines = {name: (make.__doc__ or "").partition("\n")[0] for name, make in MODELS.items()}
    lines |= {name: str(entry_point(PACKAGES, name).value) for name in installed_names(PACKAGES)}
    if as_json:
        echo_json(lines)
        return
    for name, line in lines.items():
        click.echo(f"{name:<16} {line}")


@model.command()
@click.argument("name")
@model_options
@click.option("--algorithms", is_flag=True, help="Show the work of each convolution by four algorithms instead.")
@click.option(
    "--batch",
    type=click.IntRange(1, MOST_IMAGES),
    help="Show the memory of a training step on this many images instead.",
)
@click.option(
    "--optimizer", type=click.Choice(["sgd", "lars", "lamb"]), default="sgd", show_default=True, help="For --batch."
)
@json_option
def show(
    name: str, classes: int, image_size: int, stem: str, arguments: tuple[str, ...], algorithms: bool, batch: int | None,
    optimizer: str, as_json: bool,
) -> None:  # fmt: skip
    """Show the layers of model NAME for one image.

    For each layer: output shape, parameters, operations, bytes of activations.

    \b
    Examples:
      firetrain model show squeezenet1_1
      firetrain model show alexnet --algorithms
      firetrain model show alexnet --batch 256 --optimizer lamb
      firetrain model show ./nets.py:ResNet --argument width=32 --classes 10
    """
    from firetrain.errors import UserError
    from firetrain.models.catalogue import model_by_name

    if algorithms and batch:
        raise UserError("--algorithms and --batch exclude each other")
    if was_given("optimizer") and not batch:
        raise UserError("--optimizer has an effect only with --batch")
    if ":" in name and was_given("stem"):
        raise UserError(f"{name} has no option stem, which only firetrain's models have")
    made = model_by_name(name, image_size, arguments_of(arguments), classes=classes, stem=stem)
    with _without_values(name):
        if algorithms:
            _show_algorithms(made, image_size, as_json)
        elif batch:
            _show_memory(made, image_size, batch, optimizer, as_json)
        else:
            _show_layers(made, image_size, as_json)


@contextmanager
def _without_values(name: str) -> Iterator[None]:
    """Context manager: what a model of the user's own raises when it is computed without values becomes a UserError."""
    from firetrain.config.imported import line_of
    from firetrain.errors import FiretrainError, UserError

    try:
        yield
    except FiretrainError:
        raise
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"{name}: its layers cannot be counted, because it needs the values of images, which torch's meta device does not "
            f"have: {type(error).__name__}: {str(error).partition(chr(10))[0]}{line_of(error)}"
        ) from error


def _show_layers(made: Any, image_size: int, as_json: bool) -> None:
    from firetrain.models.inventory import inventory, shares

    layers = inventory(made, image_size)
    totals = {
        "parameters": sum(layer.parameters for layer in layers),
        "flops": sum(layer.flops for layer in layers),
        "activation_bytes": sum(layer.activation_bytes for layer in layers),
    }
    if as_json:
        from dataclasses import asdict

        echo_json({"layers": [asdict(layer) for layer in layers], "total": totals, "shares": shares(layers)})
        return
    click.echo(f"{'layer':<34} {'kind':<18} {'output':<16} {'parameters':>11} {'MFLOPs':>9} {'activation KiB':>14}")
    for layer in layers:
        shape = "x".join(map(str, layer.shape))
        size_kib = layer.activation_bytes / 1024
        click.echo(
            f"{layer.name:<34} {layer.kind:<18} {shape:<16} {layer.parameters:>11,} {layer.flops / 1e6:>9,.2f} {size_kib:>14,.1f}"
        )
    click.echo(
        f"{'total':<34} {'':<18} {'':<16} {totals['parameters']:>11,} {totals['flops'] / 1e6:>9,.2f} "
        f"{totals['activation_bytes'] / 1024:>14,.1f}"
    )
    for kind, share in shares(layers).items():
        click.echo(f"{kind}: {share['parameters']:.1%} of the parameters, {share['flops']:.1%} of the operations")
    click.echo("forward pass of one image; a multiply-add counts as two FLOPs")


def _show_algorithms(made: Any, image_size: int, as_json: bool) -> None:
    from firetrain.models.convolution import convolutions, costs

    found = {one.name: costs(one) for one in convolutions(made, image_size)}
    if as_json:
        echo_json({name: {key: cost._asdict() for key, cost in own.items()} for name, own in found.items()})
        return
    families = ("direct", "im2col", "FFT", "Winograd F(2", "Winograd F(4")
    click.echo(
        f"{'convolution':<34}" + "".join(f"{family + (', r)' if '(' in family else ''):>22}" for family in families)
    )
    for name, own in found.items():
        cells = (next((cost for key, cost in own.items() if key.startswith(family)), None) for family in families)
        texts = (f"{cost.work / 1e6:,.2f} / {cost.depth}" if cost else "-" for cost in cells)
        click.echo(f"{name:<34}" + "".join(f"{text:>22}" for text in texts))
    click.echo("million multiply-adds for one image / depth; -: the algorithm needs a square kernel and stride 1")


def _show_memory(made: Any, image_size: int, batch: int, optimizer: str, as_json: bool) -> None:
    from dataclasses import asdict

    from firetrain.models.memory import memory

    found = memory(made, image_size, batch, optimizer)
    if as_json:
        echo_json({**asdict(found), "total": found.total})
        return
    for what, size_bytes in (*asdict(found).items(), ("total", found.total)):
        click.echo(f"{what:<12} {size_bytes / 2**20:>12,.1f} MiB")
    click.echo(f"a training step on {batch} images in float32, without buffers of libraries and of the reduction")
