"""Counts in records, bounded so that a damaged file is refused before a calculation overflows."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

MOST_COUNTED = 1 << 62
Count = Annotated[int, Field(ge=0, le=MOST_COUNTED)]
PositiveCount = Annotated[int, Field(ge=1, le=MOST_COUNTED)]
