"""The `cluster` section."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from firetrain.config.sections.section import Ranks, Section
from firetrain.limits import LEAST_WAIT_S, MOST_RANKS, MOST_SECONDS


class ClusterSection(Section):
    """The number of ranks, and how they communicate."""

    nodes: Ranks = 1
    ranks_per_node: Ranks = 1
    transport: Literal["auto", "gloo", "nccl"] = "auto"
    timeout_s: Annotated[float, Field(ge=LEAST_WAIT_S, le=MOST_SECONDS)] = Field(
        300.0, description="how long a rank waits for a silent peer"
    )

    @property
    def ranks(self) -> int:
        """The total number of ranks."""
        return self.nodes * self.ranks_per_node

    @model_validator(mode="after")
    def _not_too_many(self) -> ClusterSection:
        if self.ranks > MOST_RANKS:
            raise ValueError(
                f"{self.nodes} nodes with {self.ranks_per_node} ranks each are {self.ranks} ranks; the limit is {MOST_RANKS}"
            )
        return self
