"""Makes models by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from firetrain.config.names import MODELS as PACKAGES
from firetrain.config.names import entry_point, installed_names
from firetrain.config.own import Own, find_own
from firetrain.config.sections.model import ModelSection, refuse_small_images
from firetrain.errors import UserError, unknown
from firetrain.generators import seeded_generators
from firetrain.models.alexnet import alexnet
from firetrain.models.alexnet_thesis import alexnet_thesis
from firetrain.models.batch_norm import add_batch_norm
from firetrain.models.googlenet import googlenet
from firetrain.models.googlenet_paper import googlenet_mini, googlenet_paper
from firetrain.models.lenet import lenet
from firetrain.models.lenet_300_100 import lenet_300_100
from firetrain.models.nin import nin
from firetrain.models.own import own_model, refuse_untrainable_output
from firetrain.models.squeezenet import squeezenet1_0, squeezenet1_1, squeezenet_mini
from firetrain.models.weights import load_weights

MODELS: dict[str, Callable[..., nn.Module]] = {
    make.__name__: make
    for make in (
        alexnet,
        alexnet_thesis,
        googlenet,
        googlenet_mini,
        googlenet_paper,
        lenet,
        lenet_300_100,
        nin,
        squeezenet1_0,
        squeezenet1_1,
        squeezenet_mini,
    )
}

AUXILIARY_WEIGHT = 0.3


def make_model(section: ModelSection, classes: int, seed: int) -> nn.Module:
    """The model of a config, with weights drawn from `seed`, or from the config's file; UserError if that is not its file.

    The same version of torch draws the same bits everywhere.
    """
    with seeded_generators(seed):
        model = own_model(section.own, section.arguments or {}, classes) if section.own else _shipped(section, classes)
    if section.weights:
        load_weights(model, Path(section.weights))
    if section.auxiliary_weight == 0:
        model.heads_on = False  # type: ignore[assignment] # heads without weight in the loss are not computed
    return model


def _shipped(section: ModelSection, classes: int) -> nn.Module:
    options: dict[str, object] = {"classes": classes, "stem": section.stem}
    if section.auxiliary_heads is not None:
        options["auxiliary_heads"] = section.auxiliary_heads
    model = MODELS[section.name](**options)
    return add_batch_norm(model) if section.batch_norm else model


def auxiliary_weight(section: ModelSection) -> float:
    """The weight of each auxiliary head's loss."""
    return AUXILIARY_WEIGHT if section.auxiliary_weight is None else section.auxiliary_weight


def model_by_name(
    name: str, image_size: int | None = None, arguments: Mapping[str, Any] | None = None, **options: object
) -> nn.Module:
    """A model by name, for commands that have no config; code of the user's own is looked for in the working folder.

    `arguments`: those of the user's own. UserError for an unknown name or option, or if the model cannot take images of
    `image_size` pixels.
    """
    own = _own_by_name(name, arguments or {})
    if own is not None:
        if options.get("stem", "imagenet") != "imagenet":
            raise UserError(f"{name} has no option stem, which only firetrain's models have")
        classes = int(str(options.get("classes", 1000)))
        model = own_model(own, arguments or {}, classes)
        if image_size is not None:
            refuse_untrainable_output(model, name, classes, image_size)
        return model
    if arguments:
        raise UserError(f"{name} takes no arguments, which only models of your own have")
    accepted = inspect.signature(MODELS[name]).parameters
    for option in options:
        if option not in accepted:
            raise UserError(f"{name} has no option {option} (valid: {', '.join(accepted)})")
    if image_size is not None:
        try:
            refuse_small_images(name, str(options.get("stem", "imagenet")), image_size)
        except ValueError as error:
            raise UserError(str(error)) from None
    return MODELS[name](**options)


def _own_by_name(name: str, arguments: Mapping[str, Any]) -> Own | None:
    """The code of a package or of the working folder; None if the name is that of a model of firetrain's."""
    if ":" in name:
        return find_own(name, [Path.cwd()], arguments)
    if name in MODELS:
        return None
    if name.endswith(".py"):
        raise UserError(f"{name} is a file: give the name of what makes the model in it, too, as in {name}:MyNet")
    if name not in installed_names(PACKAGES):
        raise UserError(unknown("model", name, [*MODELS, *installed_names(PACKAGES)]))
    return find_own(entry_point(PACKAGES, name).value, [], arguments)
