"""The file profile.json: measurements of a cluster's links, steps and reductions, for use in later runs and predictions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from firetrain.cluster import Link
from firetrain.cluster.link import largest_bytes
from firetrain.config.files import exists, read_bytes, user_path
from firetrain.config.shipped import shipped
from firetrain.errors import CannotCreate, UserError, unknown
from firetrain.records.count import Count, PositiveCount
from firetrain.records.file import write_whole
from firetrain.records.measured_slice import Ceilings, MeasuredSlice, Stolen
from firetrain.strategy.slice import Slice

_MOST_BYTES = 64 << 20


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Finite = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Portion = Annotated[float, Field(ge=0, le=1)]


class Quantity(_Record):
    """A measured number: the median (`value`), its 95 % interval (`low`, `high`), and the `count` of measurements or `source`."""

    value: Finite
    low: Finite | None = None
    high: Finite | None = None
    count: Count = 0
    source: str = ""


class MeasuredStep(_Record):
    """The step of one rank without communication, at `batch_per_rank` images.

    - `forward_s`, `backward_s`, `update_s`: seconds of its parts.
    - `ready`: pairs (bytes of gradients, share of the backward pass after which they are complete), in order of completion;
      the bytes sum to all gradients.
    - `jitter`: standard deviation over ranks and steps, relative to the time of a step.
    - `images_per_s_read`: images that a node reads and prepares per second.
    """

    model: str
    image_size: PositiveCount
    batch_per_rank: PositiveCount
    device: str
    forward_s: Quantity
    backward_s: Quantity
    update_s: Quantity
    ready: tuple[tuple[Count, Portion], ...]
    jitter: Quantity = Quantity(value=0.0)
    images_per_s_read: Quantity | None = None

    @property
    def gradient_bytes(self) -> int:
        """The bytes of all gradients in float32."""
        return sum(size for size, _ in self.ready)


class Residual(_Record):
    """The seconds of a step that a prediction for `ranks` ranks does not explain: measured minus predicted."""

    model: str
    ranks: PositiveCount
    reduction: str
    seconds: Quantity


class Published(_Record):
    """A published result of others, for comparison with a prediction."""

    model: str
    ranks: PositiveCount
    reduction: str
    hours: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    speedup: float
    source: str


class Recipe(_Record):
    """Published pairs (batch, epochs) that a model is trained for, and the number of `images` in an epoch."""

    model: str
    epochs: Annotated[tuple[tuple[PositiveCount, float], ...], Field(min_length=1)]
    images: PositiveCount
    source: str = ""


class MeasuredLink(_Record):
    """The links of one kind, measured by messages between ranks: in one pair, or in all pairs simultaneously.

    - `latency_s`, `bytes_per_s`: fitted to the medians by non-negative least squares.
    - `medians_s`: median seconds of a message, by its bytes.
    - `spread`: half of the 95 % interval of the bandwidth, relative to the bandwidth.
    - `latency_spread`: the same for the latency.
    """

    level: Literal["inside a node", "between nodes"]
    pairs: Literal["one", "all"]
    transport: str
    node_of: tuple[Count, ...]
    latency_s: Finite
    bytes_per_s: float = Field(gt=0, allow_inf_nan=False)
    medians_s: dict[Count, float]
    count: Count
    spread: Portion = 0.0
    latency_spread: Portion = 0.0
    source: str = ""


class Timing(_Record):
    """The median seconds in which a reduction sums `bytes` bytes."""

    reduction: str
    bytes: PositiveCount
    median_s: float = Field(gt=0, allow_inf_nan=False)


class TimingTable(_Record):
    """Timings of several reductions in one world, for comparison with each other."""

    transport: str
    node_of: tuple[Count, ...]
    wire_dtype: str
    rows: tuple[Timing, ...]

    def fastest(self, size_bytes: int, among: Sequence[str] | None = None) -> str:
        """The fastest reduction for `size_bytes`, interpolated log-log between measured sizes."""
        curves: dict[str, list[tuple[float, float]]] = {}
        for row in sorted(self.rows, key=lambda row: row.bytes):
            if among is None or row.reduction in among:
                curves.setdefault(row.reduction, []).append((math.log(row.bytes), math.log(row.median_s)))
        at = math.log(size_bytes)
        return min(curves, key=lambda name: _at(curves[name], at))


class Profile(_Record):
    """All measurements of a cluster.

    - `calibrated`: link and compute speeds are measured, not assumed.
    - `s_per_added_byte`: seconds to add one byte of gradients.
    - `incast`, `congestion`: slowdown of a receiver's link while many nodes send to it, or while all nodes send to
      all; for 32 senders.
    - `message_gap`: seconds between two consecutive messages of one rank, sent or received, while all ranks exchange many
      small messages.
    - `overlap`: gradients are reduced during the backward pass.
    - `ranks_per_node`: number of ranks on a node, used by predictions.
    - `slices`, `ceilings`, `stolen`: measured slices of layers, what a rank can do at best, and what communication takes from
      compute.
    - `machines`: the machine of each measurement.

    >>> titan = Profile.find("titan-k20")  # or the path of a file
    >>> [link.pairs for link in titan.links]
    ['one', 'all']
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
    ranks_per_node: PositiveCount | None = None
    published: tuple[Published, ...] = ()
    recipes: tuple[Recipe, ...] = ()
    notes: tuple[str, ...] = ()
    tables: tuple[TimingTable, ...] = ()
    slices: tuple[MeasuredSlice, ...] = ()
    ceilings: Ceilings | None = None
    stolen: tuple[Stolen, ...] = ()
    machines: tuple[dict[str, Any], ...] = ()

    @classmethod
    def load(cls, path: Path) -> Profile:
        """The profile in a file; UserError if it cannot be read or is not a profile."""
        try:
            return cls.model_validate_json(read_bytes(path, _MOST_BYTES, "profile"))
        except UserError as error:
            raise UserError(f"cannot read the profile: {error}; firetrain bench profile writes one") from None
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'text'}: {e['msg']}" for e in error.errors())
            raise UserError(f"{path} is not a profile: {faults}") from None

    @classmethod
    def load_or_new(cls, path: Path) -> Profile:
        """The profile in a file, to which measurements are added; an empty one if there is no file."""
        return cls.load(path) if exists(path) else cls()

    @classmethod
    def find(cls, name: str) -> Profile:
        """The profile in a file, or one that comes with firetrain, by name; UserError, which lists these, if there is none."""
        known = shipped_profiles()
        if name in known:
            return cls.load(known[name])
        if "/" in name or name.endswith(".json"):
            return cls.load(user_path(name))
        raise UserError(unknown("profile", name, known) + "; a file is given as a path: ./profile.json")

    def save(self, path: Path) -> None:
        """Write the profile completely or not at all; CannotCreate if that fails."""
        write_whole(path, self.text, kind=CannotCreate)

    @property
    def text(self) -> str:
        """The content of the profile's file."""
        return json.dumps(self.model_dump(mode="json"), indent=1) + "\n"

    def with_links(self, links: Sequence[MeasuredLink], machine: dict[str, Any]) -> Profile:
        """The profile with these links, which replace earlier measurements of the same links."""
        key = {(link.level, link.pairs, link.transport) for link in links}
        kept = [link for link in self.links if (link.level, link.pairs, link.transport) not in key]
        return self.model_copy(update={"links": (*kept, *links), "machines": (*self.machines, machine)})

    def with_table(self, table: TimingTable, machine: dict[str, Any]) -> Profile:
        """The profile with the rows of `table`, which replace rows of the same world and sizes."""
        before = self.table(*_table_key(table))
        sizes = {row.bytes for row in table.rows}
        rows = [row for row in (before.rows if before else ()) if row.bytes not in sizes]
        merged = table.model_copy(update={"rows": (*rows, *table.rows)})
        kept = [other for other in self.tables if other is not before]
        return self.model_copy(update={"tables": (*kept, merged), "machines": (*self.machines, machine)})

    def with_slices(self, slices: Sequence[MeasuredSlice]) -> Profile:
        """The profile with these slices, which replace earlier measurements of the same ones."""
        known = {_slice_key(one): one for one in (*self.slices, *slices)}
        return self.model_copy(update={"slices": tuple(known.values())})

    def with_ceilings(self, ceilings: Ceilings, stolen: Stolen) -> Profile:
        """The profile with these ceilings, and with what communication takes from the compute of a model."""
        others = (one for one in self.stolen if one.model != stolen.model)
        return self.model_copy(update={"ceilings": ceilings, "stolen": (*others, stolen)})

    def table(self, transport: str, node_of: tuple[int, ...], wire_dtype: str) -> TimingTable | None:
        """The table of this world, or None."""
        return next((t for t in self.tables if _table_key(t) == (transport, node_of, wire_dtype)), None)

    def slowest_link(self, transport: str) -> Link | None:
        """The slowest link while all links are in use; None if it was not measured.

        - `latency_s`: of a single pair.
        - `overhead_s`: time of a small message while all ranks send, which includes waiting for processors.
        """
        known = {(link.level, link.pairs): link for link in self.links if link.transport == transport}
        levels = [level for level, pairs in known if pairs == "all" and (level, "one") in known]
        if not levels:
            return None
        slowest = min(levels, key=lambda level: known[level, "all"].bytes_per_s)
        together = known[slowest, "all"]
        return Link(known[slowest, "one"].latency_s, together.bytes_per_s, together.latency_s, largest_bytes(transport))


def shipped_profiles() -> dict[str, Path]:
    """The profiles that come with firetrain, by name."""
    return shipped("firetrain.configs.profiles", "configs/profiles", ".json")


def _at(curve: Sequence[tuple[float, float]], x: float) -> float:
    """Interpolate linearly between the points around `x`; outside of them, extrapolate from the nearest two."""
    curve = list(dict(curve).items())
    if len(curve) == 1:
        return curve[0][1]
    right = next((number for number, (x_known, _) in enumerate(curve) if x_known >= x), len(curve) - 1)
    (x0, y0), (x1, y1) = curve[max(1, right) - 1], curve[max(1, right)]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def _slice_key(one: MeasuredSlice) -> tuple[str, str, int, int, int]:
    return one.model, one.layer, one.images, one.outputs, one.inputs


def _table_key(table: TimingTable) -> tuple[str, tuple[int, ...], str]:
    return table.transport, table.node_of, table.wire_dtype


# measures the given slices, and returns the profile with them
MeasureSlices = Callable[[Profile, list[Slice]], Profile]
