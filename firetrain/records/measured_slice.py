"""Measured seconds of slices of layers, which a profile keeps for predictions and for the search of placements."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_Count = Annotated[int, Field(gt=0)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class MeasuredSlice(BaseModel):
    """Seconds of a layer's passes on one rank, for some images, outputs and inputs, while all ranks of its node compute the same.

    `model`: as in the profile's steps. The slowest rank counts.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    layer: str
    images: _Count
    outputs: _Count
    inputs: _Count
    forward_s: _Seconds
    backward_s: _Seconds


class Ceilings(BaseModel):
    """What a rank can do at best while all ranks of its node compute: multiply-adds, and bytes read from memory, in a second."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    operations_per_s: _Rate
    bytes_per_s: _Rate


class Stolen(BaseModel):
    """The share of a model's compute that is lost while gradients are summed at the same time."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    share: Annotated[float, Field(ge=0, le=1)]
