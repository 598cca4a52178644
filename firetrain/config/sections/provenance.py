"""The `provenance` section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from firetrain.config.sections.section import Section


class ProvenanceSection(Section):
    """The origin of a recipe: how it is known, and its source."""

    status: Literal["published", "derived", "unverified"] = Field(
        description="published: taken from a primary source; derived: computed from one; unverified: from memory, or never run"
    )
    source: str
