"""The `log` section."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from firetrain.config.sections.section import Section, Steps


class LogSection(Section):
    """How often a run reports, what it measures for its log, and which programs track it."""

    every_steps: Steps = 10
    noise_scale: bool = Field(
        False, description="measure the gradient noise scale in each epoch; needs 2 ranks or more"
    )
    to: Annotated[tuple[Literal["tensorboard", "wandb", "mlflow"], ...], Field(strict=False)] = Field(
        (), description="programs that draw curves of the run while it trains: tensorboard, wandb, mlflow"
    )

    @field_validator("to")
    @classmethod
    def _once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError("a program is listed twice")
        return names
