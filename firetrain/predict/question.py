"""The question that a prediction answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from firetrain.config import Config
from firetrain.errors import UserError, nearest
from firetrain.predict.label import model_label

_WIRE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class WhatIf:
    """Changes to the profile: factors on bandwidth, latency and compute, and oversubscribed leaf switches of `leaf` nodes."""

    bandwidth: float = 1.0
    latency: float = 1.0
    compute: float = 1.0
    oversubscription: float = 1.0
    leaf: float = 16

    @classmethod
    def parse(cls, text: str) -> WhatIf:
        """Parse `bandwidth=x2,oversubscription=4,leaf=32`; UserError if it is malformed."""
        given: dict[str, float] = {}
        valid = tuple(cls.__dataclass_fields__)
        for part in filter(None, text.split(",")):
            key, _, value = part.partition("=")
            if key not in valid:
                meant = nearest(key, valid)
                hint = f", did you mean {meant}?" if meant else ""
                raise UserError(f"--what-if {part}: unknown{hint} (valid: {', '.join(valid)})")
            try:
                given[key] = float(value.removeprefix("x"))
            except ValueError:
                given[key] = math.nan
            if not 0 < given[key] < math.inf:
                raise UserError(f"--what-if {part}: expected a number above 0, for instance {key}=x2")
        found = cls(**given)
        if found.leaf != int(found.leaf) or found.oversubscription < 1:
            raise UserError(
                f"--what-if {text}: leaf must be an integer and oversubscription 1 (none) or more, for instance "
                "oversubscription=4,leaf=32"
            )
        if "leaf" in given and "oversubscription" not in given:
            raise UserError(f"--what-if {text}: leaf has no effect without oversubscription")
        return found


@dataclass(frozen=True)
class Question:
    """Ranks, reductions, and either a fixed global batch or a batch per rank.

    `bucket_bytes`: size of buckets; None: computed from the link, as in training.
    `wire_bytes`: bytes of an element on the wire.
    `reads=False`: ignore input loading.
    `images`: images per epoch; `epochs`: epochs to the target as a function of the batch.
    `mtbf_h`: hours between failures of a node; `checkpoint_s`: seconds to write a checkpoint.
    """

    model: str
    counts: Sequence[int]
    reductions: Sequence[str]
    per_node: int
    global_batch: int | None
    per_rank: int | None = None
    bucket_bytes: int | None = None
    wire_bytes: int = 4
    reads: bool = True
    what_if: WhatIf = field(default_factory=WhatIf)
    images: int | None = None
    epochs: Callable[[int], float] | None = None
    mtbf_h: float | None = None
    checkpoint_s: float = 10.0
    price_per_node_hour: float | None = None
    watts_per_rank: float | None = None

    @classmethod
    def of(
        cls, config: Config, counts: Sequence[int], reductions: Sequence[str], per_node: int, **more: Any
    ) -> Question:
        """The question for a config's model, batch, buckets and wire dtype; `more`: other fields."""
        bucket_mib = config.reduction.bucket_mib
        facts = {
            "global_batch": config.batch.global_size, "bucket_bytes": int(bucket_mib * 2**20) if bucket_mib else None,
            "wire_bytes": _WIRE_BYTES[config.reduction.wire_dtype],
        }  # fmt: skip
        return cls(model_label(config.model, config.data), counts, reductions, per_node, **{**facts, **more})

    def batch(self, ranks: int) -> int:
        """The global batch on a number of ranks."""
        return self.per_rank * ranks if self.per_rank else int(self.global_batch or 0)
