"""profile.json: what was measured of a cluster's links and reductions, kept for later runs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from firetrain.cluster import Link
from firetrain.config.files import read_bytes, user_path
from firetrain.config.shipped import shipped
from firetrain.errors import CannotCreate, UserError, unknown
from firetrain.records.file import write_whole

_MOST_BYTES = 64 << 20


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Finite = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


class Quantity(_Record):
    """A measured number: its median with the 95 % interval, how often it was measured, or its source."""

    value: Finite
    low: Finite | None = None
    high: Finite | None = None
    count: int = 0
    source: str = ""


class MeasuredStep(_Record):
    """One rank's step without communication, at `batch_per_rank` images.

    `ready`: (bytes, share of the backward pass after which their gradients are there), in the order in which they come; the
    bytes sum to all gradients. `jitter`: standard deviation between ranks and steps, relative to the step.
    `images_per_s_read`: what a node makes ready for training.
    """

    model: str
    image_size: int
    batch_per_rank: int = Field(gt=0)
    device: str
    forward_s: Quantity
    backward_s: Quantity
    update_s: Quantity
    ready: tuple[tuple[Annotated[int, Field(ge=0)], Share], ...]
    jitter: Quantity = Quantity(value=0.0)
    images_per_s_read: Quantity | None = None

    @property
    def gradient_bytes(self) -> int:
        """All of them, as float32."""
        return sum(size for size, _ in self.ready)


class Residual(_Record):
    """Seconds of a step that the model does not explain: measured less foretold, on so many ranks."""

    model: str
    ranks: int
    reduction: str
    seconds: Quantity


class Published(_Record):
    """A result that somebody else measured, to stand beside what is foretold."""

    model: str
    ranks: int
    reduction: str
    hours: float
    speedup: float
    source: str


class Recipe(_Record):
    """How long a model trains at which batch: (batch, epochs) as published, and the images of an epoch."""

    model: str
    epochs: tuple[tuple[int, float], ...]
    images: int = Field(gt=0)
    source: str = ""


class MeasuredLink(_Record):
    """The links of one kind, as messages between ranks saw them: one pair at a time, and all pairs at once.

    Seconds and bytes per second are fitted to medians by non-negative least squares; `medians_s` has them by message size.
    `spread`: half of the 95 % interval of the bandwidth, relative to it; `latency_spread`: that of the latency.
    """

    level: Literal["inside a node", "between nodes"]
    pairs: Literal["one", "all"]
    transport: str
    node_of: tuple[int, ...]
    latency_s: Finite
    bytes_per_s: float = Field(gt=0, allow_inf_nan=False)
    medians_s: dict[int, float]
    count: int
    spread: Share = 0.0
    latency_spread: Share = 0.0
    source: str = ""


class Timing(_Record):
    """How long a reduction of `bytes` bytes took."""

    reduction: str
    bytes: int = Field(gt=0)
    median_s: float = Field(gt=0)


class Table(_Record):
    """Reductions timed side by side in one world."""

    transport: str
    node_of: tuple[int, ...]
    wire_dtype: str
    rows: tuple[Timing, ...]

    def fastest(self, size_bytes: int, among: Sequence[str] | None = None) -> str:
        """The reduction that should be fastest for `size_bytes`, by a line through its nearest sizes on logarithmic axes."""
        curves: dict[str, list[tuple[float, float]]] = {}
        for row in sorted(self.rows, key=lambda row: row.bytes):
            if among is None or row.reduction in among:
                curves.setdefault(row.reduction, []).append((math.log(row.bytes), math.log(row.median_s)))
        at = math.log(size_bytes)
        return min(curves, key=lambda name: _at(curves[name], at))


class Profile(_Record):
    """All of it. `machines` says where each part came from. `message_gap`: seconds between two messages of one rank, sent or
    received, while all ranks exchange many small ones.
    """

    version: Literal[1] = 1
    calibrated: bool = True
    links: tuple[MeasuredLink, ...] = ()
    steps: tuple[MeasuredStep, ...] = ()
    residuals: tuple[Residual, ...] = ()
    s_per_added_byte: Quantity | None = None
    incast: Quantity | None = None
    congestion: Quantity | None = None
    message_gap: Quantity | None = None
    overlap: bool = True
    ranks_per_node: Annotated[int, Field(gt=0)] | None = None
    published: tuple[Published, ...] = ()
    recipes: tuple[Recipe, ...] = ()
    notes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    machines: tuple[dict[str, Any], ...] = ()

    @classmethod
    def load(cls, path: Path) -> Profile:
        """From a file; UserError says what is wrong with it."""
        try:
            return cls.model_validate_json(read_bytes(path, _MOST_BYTES, "profile"))
        except UserError as error:
            raise UserError(f"cannot read the profile: {error}; firetrain bench link writes one") from None
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'text'}: {e['msg']}" for e in error.errors())
            raise UserError(f"{path} is not a profile: {faults}") from None

    @classmethod
    def find(cls, name: str) -> Profile:
        """One that comes with firetrain, by name, or a file; UserError names those that there are."""
        known = shipped_profiles()
        if name in known:
            return cls.load(known[name])
        if name.endswith(".json"):
            return cls.load(user_path(name))
        raise UserError(unknown("profile", name, known) + "; a file is given as a path: ./profile.json")

    def save(self, path: Path) -> None:
        """Write it whole or not at all; CannotCreate if that fails."""
        write_whole(path, json.dumps(self.model_dump(mode="json"), indent=1) + "\n", kind=CannotCreate)

    def with_links(self, links: Sequence[MeasuredLink], machine: dict[str, Any]) -> Profile:
        """With these in place of what was known of the same links."""
        key = {(link.level, link.pairs, link.transport) for link in links}
        kept = [link for link in self.links if (link.level, link.pairs, link.transport) not in key]
        return self.model_copy(update={"links": (*kept, *links), "machines": (*self.machines, machine)})

    def with_table(self, table: Table, machine: dict[str, Any]) -> Profile:
        """With these rows in place of those that the same world had for the same sizes."""
        before = self.table(*_world(table))
        sizes = {row.bytes for row in table.rows}
        rows = [row for row in (before.rows if before else ()) if row.bytes not in sizes]
        merged = table.model_copy(update={"rows": (*rows, *table.rows)})
        kept = [other for other in self.tables if other is not before]
        return self.model_copy(update={"tables": (*kept, merged), "machines": (*self.machines, machine)})

    def table(self, transport: str, node_of: tuple[int, ...], wire_dtype: str) -> Table | None:
        """The table of that world, if there is one."""
        return next((t for t in self.tables if _world(t) == (transport, node_of, wire_dtype)), None)

    def slowest_link(self, transport: str) -> Link | None:
        """The link that is slowest while all are in use, if it was measured.

        Its latency is that of a pair alone. With all at once a small message waits for the processors: that is its overhead.
        """
        known = {(link.level, link.pairs): link for link in self.links if link.transport == transport}
        levels = [level for level, pairs in known if pairs == "all" and (level, "one") in known]
        if not levels:
            return None
        slowest = min(levels, key=lambda level: known[level, "all"].bytes_per_s)
        together = known[slowest, "all"]
        return Link(known[slowest, "one"].latency_s, together.bytes_per_s, together.latency_s)


def shipped_profiles() -> dict[str, Path]:
    """Those that come with firetrain, by name."""
    return shipped("firetrain.configs.profiles", "configs/profiles", ".json")


def _at(curve: Sequence[tuple[float, float]], x: float) -> float:
    """The value at `x` of the line through the two points around it, or through the last two on that side."""
    if len(curve) == 1:
        return curve[0][1]
    right = next((number for number, (place, _) in enumerate(curve) if place >= x), len(curve) - 1)
    (x0, y0), (x1, y1) = curve[max(1, right) - 1], curve[max(1, right)]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def _world(table: Table) -> tuple[str, tuple[int, ...], str]:
    return table.transport, table.node_of, table.wire_dtype
