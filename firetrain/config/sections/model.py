"""The `model` section, and facts about the models that configs are checked with."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from firetrain.config.sections.section import Section

MODELS = (
    "alexnet", "googlenet", "googlenet_mini", "googlenet_paper", "lenet", "nin", "squeezenet1_0", "squeezenet1_1",
    "squeezenet_mini",
)  # fmt: skip
# torchvision's GoogLeNet always has batch norm
NORMALISED = ("googlenet",)


class ModelSection(Section):
    """The network, and the size of images that its first layers are designed for."""

    name: Literal[MODELS]  # type: ignore[valid-type]
    stem: Literal["imagenet", "small"] = Field("imagenet", description="small: for images of 16 to 64 pixels")
    auxiliary_heads: bool | None = Field(None, description="GoogLeNet's two extra classifiers; default off")
    auxiliary_weight: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="weight of each extra classifier's loss, default 0.3 (Szegedy et al. 2015, section 5)"
    )

    batch_norm: bool | None = Field(None, description="a batch norm after every convolution; default off")

    @property
    def is_normalised(self) -> bool:
        """Whether the model has batch norm."""
        return self.name in NORMALISED or bool(self.batch_norm)

    @model_validator(mode="after")
    def _only_where_it_acts(self) -> ModelSection:
        heads = self.name in ("googlenet", "googlenet_paper")
        self.refuse_unless(heads, ("auxiliary_heads",), "googlenet and googlenet_paper")
        self.refuse_unless(self.name not in NORMALISED, ("batch_norm",), "models without batch norm")
        self.refuse_unless(bool(self.auxiliary_heads), ("auxiliary_weight",), "auxiliary_heads: true")
        return self
