"""Names that installed packages bring: topologies and reductions, read from entry points."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from firetrain.config.spec import Spec
from firetrain.errors import UserError, unknown

TOPOLOGIES = "firetrain.topologies"
REDUCTIONS = "firetrain.reductions"


@cache
def installed_names(group: str) -> tuple[str, ...]:
    """The names of a group of entry points, without importing them."""
    return tuple(sorted({point.name for point in entry_points(group=group)}))


def reduction_names() -> tuple[str, ...]:
    """Every valid `reduction.name`: the topologies (run as plans) and the libraries' own reductions."""
    return tuple(sorted({*installed_names(TOPOLOGIES), *installed_names(REDUCTIONS)}))


def check_reduction(spec: Spec) -> None:
    """UserError unless there is such a reduction and it has these parameters; their values may still not fit a world."""
    if spec.name not in reduction_names():
        raise UserError(unknown("reduction", spec.name, reduction_names()))
    if spec.parameters:
        group = REDUCTIONS if spec.name in installed_names(REDUCTIONS) else TOPOLOGIES
        (point,) = entry_points(group=group, name=spec.name)
        spec.arguments(point.load())
