"""The `checkpoint` section."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from firetrain.config.sections.section import Epochs, Section, Steps


class CheckpointSection(Section):
    """When a run saves checkpoints, and how many it keeps."""

    every_epochs: Epochs | None = Field(
        None,
        description="epochs between checkpoints, of which one is at the end of the run; null: none at the end of epochs",
    )
    every_steps: Steps | None = Field(
        None,
        description="steps between checkpoints within an epoch, with one at the end of the run; a run that is asked to stop "
        "always writes one",
    )
    keep: Annotated[int, Field(ge=1, le=10**6)] = 2
