"""The `optimizer` section."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from firetrain.config.sections.presets import PRESETS
from firetrain.config.sections.section import Section
from firetrain.limits import MOST_RATE


class OptimizerSection(Section):
    """SGD with momentum, LARS (You, Gitman and Ginsburg 2017) or LAMB (You et al. 2020)."""

    name: Literal["sgd", "lars", "lamb"] = "sgd"
    preset: Literal["firetrain", "paper", "nvcaffe", "mlperf", "timm"] | None = Field(
        None, description="lars: implementation that provides the defaults of options not given; default firetrain"
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="lamb: its first beta")
    nesterov: bool = False
    weight_decay: Annotated[float, Field(ge=0, le=MOST_RATE)] = 0.0
    excluded: Annotated[tuple[Literal["bias", "norm"], ...], Field(strict=False)] | None = Field(
        None,
        description="kinds of parameters without weight decay and trust ratio; default: the preset's (firetrain: both)",
    )
    excluded_rate: Literal["base", "raw"] | None = Field(
        None,
        description="lars, lamb: learning rate of the excluded parameters: the small batch's (base, default), "
        "or that of the others (raw)",
    )
    trust_coefficient: Annotated[float, Field(gt=0, le=MOST_RATE)] | None = Field(
        None, description="lars: eta, default 0.001"
    )
    trust_clip: bool | None = Field(None, description="lars: the rate is at most the global one (LARC), default off")
    rate_in_momentum: bool | None = Field(
        None,
        description="lars: multiply the rate into the momentum, as in the paper and Caffe; default outside, as in torch",
    )
    decay_in_norm: bool | None = Field(
        None, description="lars: the denominator of the trust ratio is |g| + decay |w|, as in the paper (default)"
    )
    zero_norm: Literal["coefficient", "one"] | None = Field(
        None,
        description="lars: trust ratio where |w| or |g| is 0: eta (coefficient, default), or 1 as in most libraries (one)",
    )
    epsilon: Annotated[float, Field(ge=0, le=MOST_RATE)] | None = Field(
        None,
        description="added to the denominator of lars's trust ratio (default 0) or of lamb's update (default 1e-6)",
    )
    beta2: Annotated[float, Field(ge=0, lt=1)] | None = Field(None, description="lamb: default 0.999")

    @model_validator(mode="after")
    def _only_where_it_acts(self) -> OptimizerSection:
        lars = ("preset", "trust_coefficient", "trust_clip", "rate_in_momentum", "decay_in_norm", "zero_norm")
        self.refuse_unless(self.name == "lars", lars, "lars")
        self.refuse_unless(self.name != "sgd", ("excluded_rate", "epsilon"), "lars and lamb")
        self.refuse_unless(self.name == "lamb", ("beta2",), "lamb")
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        if self.nesterov and self.name == "lamb":
            raise ValueError("nesterov is for sgd and lars")
        return self

    @property
    def settled(self) -> dict[str, Any]:
        """The options of LARS and LAMB: the given values, and the preset's for all others."""
        chosen = PRESETS[self.preset or "firetrain"]
        return {key: value if (own := getattr(self, key)) is None else own for key, value in chosen.items()}
