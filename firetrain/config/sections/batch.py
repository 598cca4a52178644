"""The `batch` section."""

from __future__ import annotations

from pydantic import Field

from firetrain.config.sections.section import ImageCount, Section


class BatchSection(Section):
    """The number of images in a step."""

    global_size: ImageCount = Field(
        description="images per step over all ranks; does not change with the number of ranks"
    )
    per_rank: ImageCount | None = Field(
        None,
        description="images per step and rank, instead of global_size: the batch grows with the ranks (weak scaling)",
    )
    per_rank_max: ImageCount | None = Field(
        None,
        description="most images in one pass of a rank; a larger share is split, and its gradients are accumulated",
    )
