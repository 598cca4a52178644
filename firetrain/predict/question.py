"""What a prediction is asked for."""

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
    """Changes to what was measured: factors on speeds, and leaf switches of `leaf` nodes whose links up are so many times too
    thin for all of them."""

    bandwidth: float = 1.0
    latency: float = 1.0
    compute: float = 1.0
    oversubscription: float = 1.0
    leaf: float = 16

    @classmethod
    def parse(cls, text: str) -> WhatIf:
        """`bandwidth=x2,oversubscription=4,leaf=32`; UserError says what is wrong."""
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
                f"--what-if {text}: leaf is a whole number of nodes, oversubscription 1 (none) or more, for instance "
                "oversubscription=4,leaf=32"
            )
        if "leaf" in given and "oversubscription" not in given:
            raise UserError(f"--what-if {text}: leaf does nothing without oversubscription")
        return found


@dataclass(frozen=True)
class Question:
    """What is asked: ranks, reductions, and one of a fixed global batch or a batch per rank.

    `bucket_bytes`: None leaves it to the link, as training does; `wire_bytes`: of an element under way; not `reads`: batches
    are in memory. `epochs` turns a batch into epochs to the target; `images` are those of an epoch. `mtbf_h`: of a node,
    `checkpoint_s`: how long writing one takes.
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
        """About the model, batch, buckets and wire of a config."""
        bucket_mib = config.reduction.bucket_mib
        facts = {
            "global_batch": config.batch.global_size, "bucket_bytes": int(bucket_mib * 2**20) if bucket_mib else None,
            "wire_bytes": _WIRE_BYTES[config.reduction.wire_dtype],
        }  # fmt: skip
        return cls(model_label(config), counts, reductions, per_node, **{**facts, **more})

    def batch(self, ranks: int) -> int:
        """Of all ranks together."""
        return self.per_rank * ranks if self.per_rank else int(self.global_batch or 0)
