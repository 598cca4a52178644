"""The `model` commands."""

from __future__ import annotations

import click

from firetrain.cli.options import echo_json, json_option
from firetrain.limits import MOST_CLASSES, MOST_PIXELS


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
    from firetrain.models.catalogue import MODELS

    lines = {name: (make.__doc__ or "").partition("\n")[0] for name, make in MODELS.items()}
    if as_json:
        echo_json(lines)
        return
    for name, line in lines.items():
        click.echo(f"{name:<16} {line}")


@model.command()
@click.argument("name")
@click.option(
    "--classes", type=click.IntRange(2, MOST_CLASSES), default=1000, show_default=True, help="Number of classes."
)
@click.option(
    "--image-size", type=click.IntRange(8, MOST_PIXELS), default=224, show_default=True, help="Pixels on each side."
)
@click.option(
    "--stem",
    type=click.Choice(["imagenet", "small"]),
    default="imagenet",
    show_default=True,
    help="First layers: for ImageNet, or for small images.",
)
@json_option
def show(name: str, classes: int, image_size: int, stem: str, as_json: bool) -> None:
    """Show the layers of model NAME for one image: output shape, parameters, operations, bytes of activations.

    \b
    Example:
      firetrain model show squeezenet1_1
    """
    from firetrain.models.catalogue import model_by_name
    from firetrain.models.inventory import inventory, shares

    layers = inventory(model_by_name(name, classes=classes, stem=stem), image_size)
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
