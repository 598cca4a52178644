"""The `log` section."""

from __future__ import annotations

from pydantic import Field

from firetrain.config.sections.section import Section, Steps


class LogSection(Section):
    """How often a run reports, and what it measures for its log."""

    every_steps: Steps = 10
    noise_scale: bool = Field(
        False, description="measure the gradient noise scale in each epoch; needs 2 ranks or more"
    )
