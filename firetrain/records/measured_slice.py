"""Measured seconds of slices of layers, which a profile keeps for predictions and for the search of placements."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from firetrain.limits import MOST_RANKS
from firetrain.records.count import PositiveCount

_FiniteSeconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class MeasuredSlice(BaseModel):
    """Seconds of a layer's passes on one rank, for some images, outputs and inputs, while all ranks of its node compute the same.

    `model`: as in the profile's steps. The slowest rank counts.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    layer: str
    images: PositiveCount
    outputs: PositiveCount
    inputs: PositiveCount
    forward_s: _FiniteSeconds
    backward_s: _FiniteSeconds


class Ceilings(BaseModel):
    """What a rank can do at best while all ranks of its node compute: multiply-adds, and bytes read from memory, in a second."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    operations_per_s: _Rate
    bytes_per_s: _Rate


class Stolen(BaseModel):
    """What communication takes from a model's compute, besides the time of its messages.

    - `share`: of compute that is lost while gradients are summed at the same time.
    - `exchange_wait_s`: seconds by which an exchange takes longer between computations, because all wait for the slowest rank.
    - `gradients_s`: seconds of setting the gradients of a whole model to zero and dividing them, before and after its passes.
    - `ranks`: number of ranks that measured it; one alone finds only zeros.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    share: Annotated[float, Field(ge=0, le=1)]
    exchange_wait_s: _FiniteSeconds = 0.0
    gradients_s: _FiniteSeconds = 0.0
    ranks: Annotated[int, Field(ge=1, le=MOST_RANKS)] = 1
