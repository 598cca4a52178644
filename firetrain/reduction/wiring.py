"""What a reduction is made on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from firetrain.cluster import Link
from firetrain.config.schema import Reduction as ReductionConfig
from firetrain.records.profile import Profile
from firetrain.reduction.interface import Reduction
from firetrain.reduction.probe import measure_link
from firetrain.reduction.transport import Transport
from firetrain.reduction.wire import WIRE_DTYPES


@dataclass(frozen=True)
class Wiring:
    """The connected ranks, the type of numbers between them, and what was measured on these machines before, if anything."""

    transport: Transport
    wire_dtype: str = "float32"
    profile: Profile | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The wire dtype as torch knows it."""
        return WIRE_DTYPES[self.wire_dtype]

    def link(self) -> Link:
        """The slowest link that all ranks have in use at once: the profile's, or measured by all ranks together."""
        known = self.profile.slowest_link(self.transport.name) if self.profile else None
        return known or measure_link(self.transport)

    def bucket_bytes(self, bucket_mib: float | None) -> int:
        """A config's bucket size in bytes; where it is left open, by the link."""
        if bucket_mib is not None:
            return int(bucket_mib * (1 << 20))
        return self.link().bucket_bytes(self.transport.size) if self.transport.size > 1 else 1 << 20


def make_wiring(transport: Transport, config: ReductionConfig) -> Wiring:
    """As a config wants it; UserError if its profile cannot be read."""
    profile = Profile.load(Path(config.profile)) if config.profile else None
    return Wiring(transport, config.wire_dtype, profile)


Factory = Callable[..., Reduction]
