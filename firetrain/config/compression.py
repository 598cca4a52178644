"""How `firetrain compress` compresses a run: by layer, in which rounds, and with which training in between."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from firetrain.config.document import Document, Position
from firetrain.config.files import exists, read_yaml, user_path
from firetrain.config.load import validate
from firetrain.config.sections.provenance import ProvenanceSection
from firetrain.config.sections.section import Section, Share
from firetrain.config.shipped import shipped
from firetrain.errors import UserError, unknown

METHODS = ("deep", "prune", "quantise", "svd")
Bits = Annotated[int, Field(ge=1, le=8)]
Overrides = Annotated[tuple[str, ...], Field(strict=False)]


class LayerRecipe(Section):
    """What is done to the weights of a layer; its biases are kept as they are."""

    density: Share | None = Field(None, description="share of the weights that is kept, the largest; default 1")
    threshold: Annotated[float, Field(ge=0, le=100)] | None = Field(
        None,
        description="keep weights above this times the standard deviation of the layer's weights, in place of density",
    )
    bits: Bits | None = Field(
        None, description="of a code: weights share 2^bits - 1 values, and zero; default: the recipe's"
    )
    gap_bits: Bits | None = Field(None, description="of a gap between weights that are kept; default: the recipe's")
    rank: Share | None = Field(
        None,
        description="method svd: singular values that are kept, as a share of the parameters that are left; default 1",
    )

    @model_validator(mode="after")
    def _either(self) -> LayerRecipe:
        if self.density is not None and self.threshold is not None:
            raise ValueError("give either density or threshold")
        return self


_PLAIN = LayerRecipe.model_validate({})


class CompressionRecipe(Section):
    """A recipe, as a file or as shipped."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    layers: dict[str, LayerRecipe] = Field(
        default_factory=dict,
        description="by name of the layer, or a pattern such as fire*.expand3x3; the first that fits is used",
    )
    bits: Bits = 6
    gap_bits: Bits = 4
    dtype: Literal["float32", "float16"] = Field("float32", description="of shared values and biases in the file")
    rounds: Annotated[int, Field(ge=1, le=100)] = Field(
        1, description="in how many steps weights are pruned, each followed by training"
    )
    retrain: Overrides = Field((), description="overrides of the config for training after pruning; none: no training")
    finetune: Overrides = Field((), description="overrides for training the shared values; none: no training")
    provenance: ProvenanceSection | None = None

    def of(self, layer: str) -> LayerRecipe:
        """The recipe of a layer."""
        return next((one for pattern, one in self.layers.items() if fnmatchcase(layer, pattern)), _PLAIN)


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with firetrain, by name."""
    return shipped("firetrain.configs.compress", "configs/compress")


def load_recipe(name: str | None, options: Mapping[str, object]) -> CompressionRecipe:
    """A recipe by shipped name or path, with the command's options; without a name one that leaves every weight.

    UserError, or ConfigError with all mistakes.
    """
    if name is None:
        document = Document("recipe", {"name": "plain"})
    else:
        known = shipped_recipes()
        path = known.get(name, user_path(name))
        if not exists(path):
            raise UserError(unknown("recipe", name, known) + "; a file is given as a path: ./my.yaml")
        document = read_yaml(path)
    for key, value in options.items():
        document.data[key] = value
        document.positions[(key,)] = Position(f"--{key}")
    return validate(document, CompressionRecipe)
