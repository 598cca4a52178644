"""How `firetrain compress` compresses a run: by layer, in which rounds, and with which training in between."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from firetrain.config.document import Document
from firetrain.config.files import exists, read_yaml, user_path
from firetrain.config.sections.provenance import ProvenanceSection
from firetrain.config.sections.section import Section, Share
from firetrain.config.shipped import shipped
from firetrain.config.validation import validate
from firetrain.errors import UserError, unknown

Method = Literal["deep", "prune", "quantise", "svd"]
# methods that prune, and that let weights share values
PRUNE: tuple[Method, ...] = ("deep", "prune")
SHARE: tuple[Method, ...] = ("deep", "quantise")
# of a gap; and of a code, one of which is zero
Bits = Annotated[int, Field(ge=1, le=8)]
CodeBits = Annotated[int, Field(ge=2, le=8)]
Overrides = Annotated[tuple[str, ...], Field(strict=False)]


class LayerRecipe(Section):
    """What is done to the weights of a layer; its biases are kept as they are."""

    density: Share | None = Field(None, description="share of the weights that is kept, the largest; default 1")
    threshold: Annotated[float, Field(ge=0, le=100)] | None = Field(
        None,
        description="keep weights above this times the standard deviation of the layer's weights, in place of density",
    )
    bits: CodeBits | None = Field(
        None,
        description="of a code: a layer has at most 2^bits - 1 shared values besides zero; default: the recipe's bits",
    )
    gap_bits: Bits | None = Field(
        None, description="of a gap between weights that are kept; default: the recipe's gap_bits"
    )
    low_rank_share: Share | None = Field(
        None,
        description="method svd: numbers of the two factors, as a share of the layer's weights; default: no factors",
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
        description="by name of the layer, or a pattern such as features.*.expand3x3; the first that fits is used",
    )
    bits: CodeBits = 6
    gap_bits: Bits = 4
    bit_price: Annotated[float, Field(ge=0, le=0.1)] = Field(
        0.0,
        description="of a code, in squared difference, as a share of the variance of the layer's weights that are kept",
    )
    dtype: Literal["float32", "float16"] = Field("float32", description="of shared values and biases in the file")
    rounds: Annotated[int, Field(ge=1, le=100)] = Field(
        1, description="how often weights are pruned, each time followed by training"
    )
    retrain: Overrides = Field((), description="overrides of the config for training after pruning; none: no training")
    finetune: Overrides = Field((), description="overrides for training the shared values; none: no training")
    provenance: ProvenanceSection | None = None

    def of(self, layer: str) -> LayerRecipe:
        """The recipe of a layer."""
        pattern = self.pattern_of(layer)
        return _PLAIN if pattern is None else self.layers[pattern]

    def pattern_of(self, layer: str) -> str | None:
        """The first pattern that fits a layer."""
        return next((pattern for pattern in self.layers if fnmatchcase(layer, pattern)), None)

    def with_bits(self, bits: int) -> CompressionRecipe:
        """The recipe with codes of so many bits in all layers."""
        layers = {pattern: one.model_copy(update={"bits": None}) for pattern, one in self.layers.items()}
        return self.model_copy(update={"bits": bits, "layers": layers})

    def trainings(self, method: Method) -> tuple[str, ...]:
        """The keys of the trainings that take place under this method."""
        used = {"retrain": method in PRUNE, "finetune": method in SHARE}
        return tuple(key for key, takes_place in used.items() if takes_place and getattr(self, key))

    def without_effect(self, method: Method) -> list[str]:
        """The keys that the recipe gives, but that have no effect under this method; rounds need training in between."""
        of_pruning, of_sharing = ("density", "threshold", "rounds", "retrain"), ("bits", "bit_price", "finetune")
        used = dict.fromkeys(of_pruning, method in PRUNE) | dict.fromkeys(of_sharing, method in SHARE)
        used["rounds"] &= bool(self.retrain)
        used |= {"gap_bits": method != "svd", "low_rank_share": method == "svd"}
        given = self.model_fields_set.union(*(one.model_fields_set for one in self.layers.values()))
        return [key for key, has_effect in used.items() if key in given and not has_effect]


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with firetrain, by name."""
    return shipped("firetrain.configs.compress", "configs/compress")


def load_recipe(name: str | None) -> CompressionRecipe:
    """A recipe by shipped name or path; without a name, a recipe that prunes nothing.

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
    return validate(document, CompressionRecipe)
