"""The `target` section."""

from __future__ import annotations

from pydantic import Field, model_validator

from firetrain.config.sections.section import Epochs, Section, Share, Steps


class TargetSection(Section):
    """When training has reached its goal, and when it ends without reaching it."""

    top1: Share | None = Field(None, description="stop when this share of the test images is classified correctly")
    max_epochs: Epochs = 1
    max_steps: Steps | None = None
    evaluate_every_epochs: Epochs = 1
    train_on: bool = Field(
        False,
        description="continue to max_epochs after top1 is reached; time-to-accuracy still ends when it is first reached",
    )

    @model_validator(mode="after")
    def _only_with_a_target(self) -> TargetSection:
        if self.train_on and self.top1 is None:
            raise ValueError("train_on has no effect here (only with top1): remove it")
        return self
