"""Placements as YAML files, which users write or change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import yaml
from pydantic import Field

from firetrain.cluster import World
from firetrain.config.document import Document, Mistake
from firetrain.config.files import read_yaml
from firetrain.config.load import ConfigError, validate
from firetrain.config.sections.section import Ranks, Section
from firetrain.errors import UserError, unknown
from firetrain.limits import MOST_IMAGES
from firetrain.strategy.check import faults
from firetrain.strategy.layer import Layer
from firetrain.strategy.placement import Placement, Schedule
from firetrain.strategy.split import Split


class SplitSection(Section):
    """How a layer is divided: into shares of images, outputs and inputs, on as many ranks."""

    images: Ranks = 1
    outputs: Ranks = 1
    inputs: Ranks = 1
    ranks: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)] | None = Field(
        None, description="the ranks, in the order of Split; default: all"
    )


class PlacementFile(Section):
    """A placement: the number of ranks, and the split of each layer."""

    ranks: Ranks
    micro_batches: Annotated[int, Field(ge=1, le=MOST_IMAGES)] = 1
    schedule: Schedule = "gpipe"
    default: SplitSection | None = Field(None, description="the split of layers that are not listed")
    layers: dict[str, SplitSection] = Field(default_factory=dict)


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


def text(placement: Placement) -> str:
    """A placement as a placement file."""

    def section(split: Split) -> dict[str, Any]:
        degrees = {key: getattr(split, key) for key in ("images", "outputs", "inputs") if getattr(split, key) > 1}
        everywhere = split.ranks == tuple(range(placement.ranks))
        return degrees if everywhere else {**degrees, "ranks": list(split.ranks)}

    content = {
        "ranks": placement.ranks, "micro_batches": placement.micro_batches, "schedule": placement.schedule,
        "layers": {name: section(split) for name, split in placement.splits.items()},
    }  # fmt: skip
    return f"# {placement.strategy}\n{yaml.safe_dump(content, sort_keys=False, default_flow_style=None)}"
