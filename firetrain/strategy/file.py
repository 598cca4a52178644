"""Placements as YAML files, which users write or change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import yaml
from pydantic import Field, model_validator

from firetrain.cluster import World
from firetrain.config import Config
from firetrain.config.document import Document, Mistake
from firetrain.config.files import read_yaml, user_path
from firetrain.config.label import model_label
from firetrain.config.sections.reduction import bytes_of_bucket
from firetrain.config.sections.section import Ranks, Section
from firetrain.config.validation import ConfigError, validate
from firetrain.errors import UserError, unknown
from firetrain.limits import MOST_IMAGES, MOST_MICRO_BATCHES, MOST_RANKS
from firetrain.strategy.check import faults
from firetrain.strategy.layer import Layer
from firetrain.strategy.placement import Placement, Schedule
from firetrain.strategy.split import Split


class SplitSection(Section):
    """How a layer is divided: into shares of images, outputs and inputs, on as many ranks."""

    images: Ranks = 1
    outputs: Ranks = 1
    inputs: Ranks = 1
    ranks: Annotated[tuple[Annotated[int, Field(ge=0, lt=MOST_RANKS)], ...], Field(strict=False)] | None = Field(
        None, description="the ranks, in the order of Split; default: all"
    )


class SearchedSection(Section):
    """What a placement was searched for; training in any other way is refused.

    `world`: the nodes of the ranks. `step_ms`: of this placement; nothing that was searched is faster than `bound_ms`.
    `profile`: SHA-256 of the profile, from which both follow with the changes of `what_if`.
    """

    version: Literal[1] = 1
    model: str
    images: Annotated[int, Field(ge=1, le=MOST_IMAGES)]
    world: Annotated[tuple[Annotated[int, Field(ge=0, lt=MOST_RANKS)], ...], Field(strict=False)]
    reduction: str
    wire_dtype: str = "float32"
    bucket_mib: Annotated[float, Field(gt=0, le=1 << 16)]
    step_ms: Annotated[float, Field(ge=0)]
    bound_ms: Annotated[float, Field(ge=0)]
    profile: str
    what_if: str = ""

    def differences(self, config: Config, world: World) -> Iterator[str]:
        """How a config on a world differs from what was searched."""
        label, reduction = model_label(config.model, config.data), config.reduction
        if label != self.model:
            yield f"the model {self.model}, not {label}"
        if config.batch.global_size != self.images:
            yield f"a batch of {self.images} images, not {config.batch.global_size}"
        if world.node_of != self.world:
            yield f"{World(self.world)}, not {world}"
        if str(reduction.spec) != self.reduction:
            yield f"reduction.name {self.reduction}, not {reduction.spec}"
        if reduction.wire_dtype != self.wire_dtype:
            yield f"reduction.wire_dtype {self.wire_dtype}, not {reduction.wire_dtype}"
        if reduction.bucket_bytes not in (None, bytes_of_bucket(self.bucket_mib)):
            yield f"reduction.bucket_mib {self.bucket_mib:g}, not {reduction.bucket_mib:g}"


class PlacementFile(Section):
    """A placement: the number of ranks, and the split of each layer. `searched`: if it was found by a search."""

    ranks: Ranks
    searched: SearchedSection | None = None
    micro_batches: Annotated[int, Field(ge=1, le=MOST_MICRO_BATCHES)] = 1
    schedule: Schedule = "gpipe"
    default: SplitSection | None = Field(None, description="the split of layers that are not listed")
    layers: dict[str, SplitSection] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _schedule_has_an_effect(self) -> PlacementFile:
        if self.schedule == "1f1b" and self.micro_batches == 1:
            raise ValueError(
                "schedule 1f1b orders micro-batches, and a batch is one: set micro_batches, or remove schedule"
            )
        return self


def strategy_of(path: Path) -> Callable[[Sequence[Layer], World], Placement]:
    """The strategy that a placement file describes; UserError or ConfigError with its mistakes, with file, line and column."""
    document = read_yaml(path)
    file = validate(document, PlacementFile)

    def strategy(layers: Sequence[Layer], world: World) -> Placement:
        if world.size != file.ranks:
            raise UserError(f"{path} places a model on {file.ranks} ranks, but there are {world.size}")
        names = [layer.name for layer in layers]
        mistakes = [
            Mistake(document.position(("layers", name)), ("layers", name), unknown("layer", name, names))
            for name in file.layers
            if name not in names
        ]
        missing = [name for name in names if name not in file.layers and file.default is None]
        if missing:
            what = f"{', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}: not placed; add them, or a default"
            mistakes.append(Mistake(document.position(("layers",)), ("layers",), what))
        splits = {name: _split(file, name, document, mistakes) for name in names if name not in missing}
        if mistakes:
            raise ConfigError(mistakes)
        placement = Placement(str(path), file.ranks, tuple(layers), splits, file.micro_batches, file.schedule)
        if found := faults(placement, 2 * file.ranks + 1):
            raise UserError("\n".join(f"{path}: {fault}" for fault in found[:10]))
        if file.schedule == "1f1b" and placement.stage(0)[1] == 1:
            what = "1f1b orders the passes of several stages, and these layers are one: remove it"
            raise ConfigError([Mistake(document.position(("schedule",)), ("schedule",), what)])
        return placement

    return strategy


def _split(file: PlacementFile, name: str, document: Document, mistakes: list[Mistake]) -> Split:
    """The split of a layer; adds to `mistakes` if its numbers do not fit."""
    listed = name in file.layers
    path: tuple[str | int, ...] = ("layers", name) if listed else ("default",)
    section = file.layers[name] if listed else cast(SplitSection, file.default)
    ranks = tuple(range(file.ranks)) if section.ranks is None else section.ranks
    try:
        return Split(ranks, section.images, section.outputs, section.inputs)
    except ValueError as error:
        if not any(mistake.path == path for mistake in mistakes):
            mistakes.append(Mistake(document.position(path), path, str(error)))
        return Split((0,))


def ranks_of(path: Path) -> int:
    """The number of ranks of the placement file at `path`; UserError or ConfigError if it cannot be read."""
    return validate(read_yaml(path), PlacementFile).ranks


def bucket_bytes_of(config: Config, world: World) -> int | None:
    """The size of buckets that belongs to the config's placement file; None if the strategy is not a searched placement.

    UserError if the placement was searched for something else than this config on this world.
    """
    if not config.strategy.is_file:
        return None
    path = user_path(config.strategy.name)
    searched = _searched(path)
    if searched is None:
        return None
    if wrong := list(searched.differences(config, world)):
        raise UserError(f"{path} was searched for {'; '.join(wrong)}: search again, or remove its key `searched`")
    return bytes_of_bucket(searched.bucket_mib)


def fits(path: Path, config: Config, world: World) -> bool:
    """Whether the placement file at `path` was searched for this config on this world."""
    searched = _searched(path)
    return searched is not None and not list(searched.differences(config, world))


def _searched(path: Path) -> SearchedSection | None:
    return validate(read_yaml(path), PlacementFile).searched


def text(placement: Placement, searched: SearchedSection | None = None) -> str:
    """A placement as a placement file."""

    def section(split: Split) -> dict[str, Any]:
        degrees = {key: getattr(split, key) for key in ("images", "outputs", "inputs") if getattr(split, key) > 1}
        everywhere = split.ranks == tuple(range(placement.ranks))
        return degrees if everywhere else {**degrees, "ranks": list(split.ranks)}

    content = {
        "ranks": placement.ranks, "micro_batches": placement.micro_batches, "schedule": placement.schedule,
        "layers": {name: section(split) for name, split in placement.splits.items()},
    }  # fmt: skip
    if searched:
        content = {"searched": searched.model_dump(mode="json"), **content}
    return f"# {placement.strategy}\n{yaml.safe_dump(content, sort_keys=False, default_flow_style=None)}"
