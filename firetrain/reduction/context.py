"""The context from which reductions are made: ranks, wire dtype and measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from firetrain.cluster import Link
from firetrain.config.sections.reduction import ReductionSection
from firetrain.records.profile import Profile
from firetrain.reduction.interface import Reduction
from firetrain.reduction.wire import WIRE_DTYPES
from firetrain.topology import Plan
from firetrain.transport.probe import measure_link
from firetrain.transport.transport import Transport


@dataclass(frozen=True)
class Context:
    """The connected ranks, the wire dtype, and earlier measurements of these machines, if there are any.

    `may_measure`: whether reductions may be measured before the first step; not where they are made in a backward pass.

    >>> from firetrain.cluster import Identity, World
    >>> alone = Transport("gloo", Identity(), World.even(nodes=1, ranks_per_node=1), torch.device("cpu"), timeout_s=60.0)
    >>> Context(alone, wire_dtype="bfloat16").dtype
    torch.bfloat16
    """

    transport: Transport
    wire_dtype: str = "float32"
    profile: Profile | None = None
    may_measure: bool = True

    @property
    def dtype(self) -> torch.dtype:
        """The wire dtype as a torch dtype."""
        return WIRE_DTYPES[self.wire_dtype]

    def link(self) -> Link:
        """The slowest link while all links are in use, from the profile, or measured by a collective call of all ranks."""
        known = self.profile.slowest_link(self.transport.name) if self.profile else None
        return known or measure_link(self.transport)

    def piece_elements(self, plan: Plan, length: int) -> int:
        """The number of elements per piece of a chunk in a pipelined plan, for a buffer of `length` elements.

        Collective over all ranks, because the link may have to be measured. If the plan is not pipelined: `length`.
        """
        if not plan.pipelined:
            return length
        element_bytes = self.dtype.itemsize
        return self.link().piece_bytes(length * element_bytes / plan.chunks, plan.depth) // element_bytes

    def bucket_bytes(self, given: int | None) -> int:
        """The size of buckets in bytes: the `given` one, or if that is None, computed from the link."""
        if given is not None:
            return given
        return self.link().bucket_bytes(self.transport.size) if self.transport.size > 1 else 1 << 20


def make_context(transport: Transport, section: ReductionSection) -> Context:
    """The context for a config's `reduction` section; UserError if its profile cannot be read."""
    profile = Profile.load(Path(section.profile)) if section.profile else None
    return Context(transport, section.wire_dtype, profile)


Factory = Callable[..., Reduction]
