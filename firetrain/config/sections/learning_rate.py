"""The `learning_rate` section."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from firetrain.config.sections.section import ImageCount, Section
from firetrain.limits import MOST_EPOCHS, MOST_RATE

# the learning rate grows with this power of the batch (linear: Goyal et al. 2017; sqrt: Krizhevsky 2014)
RULES = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}


class LearningRateSection(Section):
    """The learning rate as a function of the step."""

    base: Annotated[float, Field(gt=0, le=MOST_RATE)] = Field(description="the rate that suits base_batch")
    base_batch: ImageCount | None = Field(
        None, description="the batch that base was tuned for; default the global batch"
    )
    scaling: str | float = Field(
        "none", description="none, linear, sqrt, or an exponent e: base (batch / base_batch)^e"
    )
    peak: Annotated[float, Field(gt=0, le=MOST_RATE)] | None = Field(
        None,
        description="the rate after warmup, instead of a scaling rule; "
        "for LARS, where base stays the rate of parameters without a trust ratio",
    )
    warmup_from: Literal["base", "zero"] | None = Field(
        None, description="where warmup starts: at base (default if the peak is above it), or at zero"
    )
    decay_from: Literal["start", "warmup_end"] | None = Field(
        None, description="poly, linear, cosine: count the schedule's steps from here; default warmup_end"
    )
    warmup_epochs: Annotated[float, Field(ge=0, le=MOST_EPOCHS)] = 0.0
    schedule: Literal["constant", "step", "poly", "linear", "cosine"] = "constant"
    power: Annotated[float, Field(gt=0, le=1000)] | None = Field(None, description="poly: (1 - t/T)^power, default 1")
    every_epochs: Annotated[float, Field(gt=0, le=MOST_EPOCHS)] | None = Field(
        None, description="step: epochs between two drops"
    )
    factor: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="step: factor applied to the rate at each drop, default 0.1"
    )
    floor: Annotated[float, Field(ge=0, le=MOST_RATE)] | None = Field(
        None, description="poly, linear, cosine: the final rate, default 0"
    )

    @field_validator("scaling")
    @classmethod
    def _a_rule(cls, scaling: str | float) -> str | float:
        if scaling in RULES or (isinstance(scaling, float | int) and 0 <= scaling <= 1):
            return scaling
        raise ValueError(f"must be one of {', '.join(RULES)}, or an exponent from 0 to 1 (got {scaling!r})")

    @property
    def exponent(self) -> float:
        """The exponent of the scaling rule: the peak rate grows with this power of the batch."""
        return RULES[self.scaling] if isinstance(self.scaling, str) else float(self.scaling)

    def peak_for(self, batch_size: int) -> float:
        """The rate after warmup at this global batch: `peak`, or `base` scaled from `base_batch`."""
        if self.peak is not None:
            return self.peak
        ratio = batch_size / self.base_batch if self.base_batch else 1.0
        return self.base * float(ratio**self.exponent)

    @model_validator(mode="after")
    def _only_where_it_acts(self) -> LearningRateSection:
        self.refuse_unless(self.schedule == "poly", ("power",), "schedule: poly")
        self.refuse_unless(self.schedule == "step", ("every_epochs", "factor"), "schedule: step")
        self.refuse_unless(
            self.schedule in ("poly", "linear", "cosine"), ("floor",), "schedule: poly, linear or cosine"
        )
        self.refuse_unless(
            self.schedule in ("poly", "linear", "cosine"), ("decay_from",), "schedule: poly, linear or cosine"
        )
        self.refuse_unless(self.warmup_epochs > 0, ("warmup_from",), "warmup_epochs above 0")
        self.refuse_unless(self.scaling != "none", ("base_batch",), "scaling: linear, sqrt or an exponent")
        if self.peak is not None and self.scaling != "none":
            raise ValueError("peak and scaling both set the rate after warmup: give only one of them")
        if self.scaling != "none" and self.base_batch is None:
            raise ValueError(f"scaling: {self.scaling} needs base_batch, the batch that base was tuned for")
        if self.schedule == "step" and self.every_epochs is None:
            raise ValueError("schedule: step needs every_epochs")
        return self
