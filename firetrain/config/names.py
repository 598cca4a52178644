"""Names of topologies, reductions and strategies, which installed packages provide as entry points."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from firetrain.config.files import is_file, user_path
from firetrain.config.spec import Spec, parse_list
from firetrain.errors import UserError, unknown

TOPOLOGIES = "firetrain.topologies"
REDUCTIONS = "firetrain.reductions"
STRATEGIES = "firetrain.strategies"
# the strategy that is searched when training starts
AUTO_STRATEGY = "auto"
_KINDS = {TOPOLOGIES: "topology", REDUCTIONS: "reduction", STRATEGIES: "strategy"}
# advice for when the reduction horovod is selected but not installed
HOROVOD_HINT = "build it with `make horovod`, or `python -m firetrain.horovod_wheel` where there is no checkout"


def installed_names(group: str) -> tuple[str, ...]:
    """The names in a group of entry points; nothing is imported."""
    return tuple(sorted({point.name for point in _installed(group)}))


def entry_point(group: str, name: str) -> EntryPoint:
    """The entry point of this name; UserError if no package provides it, or more than one."""
    points = [point for point in _installed(group) if point.name == name]
    if not points:
        raise UserError(unknown(_KINDS[group], name, installed_names(group)))
    if len(points) > 1:
        packages = " and ".join(sorted(map(package_of, points)))
        raise UserError(f"{_KINDS[group]} {name} comes from several packages, {packages}: uninstall all but one")
    return points[0]


@cache
def _installed(group: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))


def load_entry_point(group: str, name: str) -> Callable[..., Any]:
    """The function of an entry point; UserError, which names the package, if it cannot be imported."""
    point = entry_point(group, name)
    try:
        function: Callable[..., Any] = point.load()
    except Exception as error:  # importing runs code of other packages, which may raise anything
        package = package_of(point)
        raise UserError(
            f"{_KINDS[group]} {name} cannot be loaded from {point.value}, {type(error).__name__}: {error}; "
            f"reinstall or uninstall the package that provides it, {package}"
        ) from error
    return function


def package_of(point: EntryPoint) -> str:
    """The name of the package that provides an entry point."""
    return point.dist.name if point.dist else "unknown"


def reduction_names() -> tuple[str, ...]:
    """Every valid `reduction.name`: the topologies (run as plans) and the libraries' own reductions."""
    return tuple(sorted({*installed_names(TOPOLOGIES), *installed_names(REDUCTIONS)}))


def is_placement_file(strategy: str) -> bool:
    """Whether the name of a strategy is that of a placement file."""
    return strategy.endswith((".yaml", ".yml"))


def check_strategy(spec: Spec) -> None:
    """UserError unless a strategy of this name has these parameters. Whether it suits a model and a world is not checked here."""
    if is_placement_file(spec.name):  # which is read with the model at hand
        if spec.parameters:
            raise UserError(f"{spec.name}: a placement file has no parameters")
        if not is_file(user_path(spec.name)):
            raise UserError(f"no file {spec.name}")
    elif spec.name == AUTO_STRATEGY:
        if [key for key, _ in spec.parameters] != ["profile"]:
            raise UserError(
                f"strategy {spec}: the placement is searched by the costs of a measured profile, and nothing else can be given: "
                "strategy.parameters.profile=FILE"
            )
    elif spec.name not in (names := installed_names(STRATEGIES)):
        raise UserError(unknown("strategy", spec.name, [*names, AUTO_STRATEGY]))
    elif spec.parameters:
        spec.arguments(load_entry_point(STRATEGIES, spec.name), given=2)


def parse_strategies(text: str) -> list[Spec]:
    """The strategies of a list; UserError if the list is wrong or check_strategy refuses one."""
    specs = parse_list(text)
    for spec in specs:
        check_strategy(spec)
    return specs


def check_reduction(spec: Spec) -> None:
    """UserError unless a reduction of this name has these parameters. Whether their values fit a world is not checked here."""
    if spec.name not in reduction_names():
        raise UserError(unknown("reduction", spec.name, reduction_names()))
    group = REDUCTIONS if spec.name in installed_names(REDUCTIONS) else TOPOLOGIES
    if spec.parameters:
        spec.arguments(load_entry_point(group, spec.name))
    else:
        entry_point(group, spec.name)
