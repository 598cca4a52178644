"""The `model` section, and facts about the models that configs are checked with."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from firetrain.config import names
from firetrain.config.own import Own
from firetrain.config.sections.section import Argument, Section, known_or_own

MODELS = (
    "alexnet", "alexnet_thesis", "googlenet", "googlenet_mini", "googlenet_paper", "lenet", "lenet_300_100", "nin",
    "squeezenet1_0", "squeezenet1_1", "squeezenet_mini",
)  # fmt: skip
# endings of files that torch.save writes; other files of weights are compressed models
TORCH_ENDINGS = (".pt", ".pth")
# torchvision's GoogLeNet and the thesis' AlexNet always have batch norm
NORMALISED = ("alexnet_thesis", "googlenet")

# the least size of images with each first layers, where 8 pixels are too few: (small, imagenet)
_LEAST_PIXELS = {
    "alexnet": (13, 63), "alexnet_thesis": (35, 35), "googlenet": (8, 15), "googlenet_paper": (15, 31), "lenet": (14, 14),
    "nin": (8, 39), "squeezenet1_0": (8, 21), "squeezenet1_1": (8, 17),
}  # fmt: skip


def refuse_small_images(model: str, stem: str, image_size: int) -> None:
    """ValueError if the model cannot take images of `image_size` pixels."""
    small, imagenet = _LEAST_PIXELS.get(model, (1, 1))
    least = small if stem == "small" else imagenet
    if image_size < least:
        smaller = f", or stem small, which takes {small}" if small < least else ""
        raise ValueError(
            f"{model} with stem {stem} needs images of {least} pixels or more (got {image_size}): use larger images{smaller}"
        )


class ModelSection(Section):
    """The network, and the size of images that its first layers are designed for."""

    name: str = Field(
        description=f"{', '.join(MODELS)}; or a model of your own: package.module:name, or ./file.py:name",
    )
    arguments: dict[str, Argument] | None = Field(
        None, description="a model of your own: what its function or class is called with"
    )
    folder: str | None = Field(
        None,
        description="a model of your own: its folder; default: the config's, then where firetrain is started",
    )
    stem: Literal["imagenet", "small"] | None = Field(
        None, description="imagenet (default), or small: for images of 16 to 64 pixels"
    )
    auxiliary_heads: bool | None = Field(None, description="GoogLeNet's two extra classifiers; default off")
    auxiliary_weight: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="weight of each extra classifier's loss, default 0.3 (Szegedy et al. 2015, section 5)"
    )

    batch_norm: bool | None = Field(None, description="a batch norm after every convolution; default off")
    weights: str | None = Field(
        None, description="file with the weights to start from: a compressed model, or a state dict (.pt, .pth)"
    )
    keep: Literal["zeros", "values"] | None = Field(
        None,
        description="with weights; zeros: weights that are zero stay zero; values: weights of a layer that share a value go on "
        "sharing it, and zeros stay zero",
    )

    @model_validator(mode="before")
    @classmethod
    def _with_stem(cls, data: Any) -> Any:
        """Only firetrain's models have a stem."""
        return {"stem": "imagenet", **data} if isinstance(data, dict) and data.get("name") in MODELS else data

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return known_or_own(name, MODELS, names.MODELS, "a model")

    @property
    def own(self) -> Own | None:
        """The user's own code that makes the model; None for firetrain's models."""
        return Own.of(self.name, self.folder, names.MODELS)

    @property
    def is_normalised(self) -> bool:
        """Whether the model has batch norm; of models of the user's own nothing is known before they are made."""
        return self.name in NORMALISED or bool(self.batch_norm) or self.own is not None

    @model_validator(mode="after")
    def _only_where_it_acts(self) -> ModelSection:
        own = self.own is not None
        self.refuse_unless(own, ("arguments", "folder"), "a model of your own")
        self.refuse_unless(not own, ("stem", "auxiliary_heads", "batch_norm"), "firetrain's models")
        heads = self.name in ("googlenet", "googlenet_paper")
        self.refuse_unless(heads, ("auxiliary_heads",), "googlenet and googlenet_paper")
        self.refuse_unless(self.name not in NORMALISED, ("batch_norm",), "models without batch norm")
        self.refuse_unless(bool(self.auxiliary_heads), ("auxiliary_weight",), "auxiliary_heads: true")
        self.refuse_unless(self.weights is not None, ("keep",), "weights")
        return self
