"""The question that a prediction answers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from firetrain.config import Config
from firetrain.config.label import model_label
from firetrain.config.sections.strategy import DATA_PARALLEL
from firetrain.errors import UserError, nearest
from firetrain.limits import MOST_RANKS
from firetrain.strategy.layer import Layer

_LEAST_FACTOR = 1e-6


@dataclass(frozen=True)
class WhatIf:
    """Changes to the profile: factors on bandwidth, latency and compute, and oversubscribed leaf switches of `leaf` nodes.

    >>> str(WhatIf.parse("compute=2,bandwidth=x0.1"))
    'bandwidth=x0.1,compute=x2'
    """

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
            if not _LEAST_FACTOR <= given[key] <= 1 / _LEAST_FACTOR:
                raise UserError(
                    f"--what-if {part}: expected a number from {_LEAST_FACTOR:g} to {1 / _LEAST_FACTOR:,.0f}"
                )
        found = cls(**given)
        if found.leaf != int(found.leaf) or found.oversubscription < 1:
            raise UserError(
                f"--what-if {text}: leaf must be an integer and oversubscription 1 (none) or more, for instance "
                "oversubscription=4,leaf=32"
            )
        if "leaf" in given and "oversubscription" not in given:
            raise UserError(f"--what-if {text}: leaf has no effect without oversubscription")
        return found

    def __str__(self) -> str:
        """The changes, as `parse` takes them; empty if there are none."""
        changed = {key: value for key, value in asdict(self).items() if value != getattr(type(self), key)}
        return ",".join(f"{key}=x{value:.12g}" for key, value in changed.items())

    def refuse_oversubscribed_exchanges(self) -> None:
        """UserError if switches are oversubscribed: exchanges of activations are not priced on them."""
        if self.oversubscription > 1:
            raise UserError(
                f"--what-if {self}: exchanges of activations are not priced on oversubscribed switches, only the sums of "
                "data-parallel training are; scale bandwidth instead"
            )


@dataclass(frozen=True)
class Question:
    """Ranks, strategies, reductions, and either a fixed global batch or a batch per rank.

    `layers`: of the model, for strategies other than data-parallel.
    `bucket_bytes`: size of buckets; None: computed from the link, as in training.
    `wire_bytes`: bytes of an element on the wire.
    `per_rank_max`: most images in one pass of a rank.
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
    per_rank_max: int | None = None
    reads: bool = True
    what_if: WhatIf = field(default_factory=WhatIf)
    images: int | None = None
    epochs: Callable[[int], float] | None = None
    mtbf_h: float | None = None
    checkpoint_s: float = 10.0
    price_per_node_hour: float | None = None
    watts_per_rank: float | None = None
    strategies: Sequence[str] = (DATA_PARALLEL,)
    layers: Sequence[Layer] = ()

    @classmethod
    def of(
        cls, config: Config, counts: Sequence[int], reductions: Sequence[str], per_node: int, **more: Any
    ) -> Question:
        """The question for a config's model, batch, buckets and wire dtype; `more`: other fields."""
        facts: dict[str, Any] = {
            "global_batch": config.batch.global_size, "bucket_bytes": config.reduction.bucket_bytes,
            "wire_bytes": config.reduction.wire_bytes, "per_rank_max": config.batch.per_rank_max,
        }  # fmt: skip
        return cls(model_label(config.model, config.data), counts, reductions, per_node, **{**facts, **more})

    def batch(self, ranks: int) -> int:
        """The global batch on a number of ranks."""
        return self.per_rank * ranks if self.per_rank else int(self.global_batch or 0)


def parse_counts(text: str) -> list[int]:
    """Numbers of ranks: `1:128` doubles from the first to the last, `1,3,6` is a list. UserError if it is neither."""
    first, colon, last = text.partition(":")
    parts = [first, last] if colon else text.split(",")
    if not all(re.fullmatch(r"\s*[0-9]+\s*", part) for part in parts):
        raise UserError(f"--ranks: expected a list of numbers, 1,3,6, or a range, 1:1024 (got {text!r})")
    # Python reads no number of more than 4,300 digits; of one above the limit, the first ones are enough
    numbers = [int(part.strip().lstrip("0")[:19] or 0) for part in parts]
    if not all(1 <= number <= MOST_RANKS for number in numbers) or (colon and numbers[0] > numbers[1]):
        raise UserError(f"--ranks: must be from 1 to {MOST_RANKS}, the smaller first (got {text})")
    if not colon:
        return sorted(set(numbers))
    found = [numbers[0]]
    while found[-1] * 2 <= numbers[1]:
        found.append(found[-1] * 2)
    return found
