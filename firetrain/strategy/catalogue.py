"""Finds strategies of firetrain and of other packages by entry point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps

from firetrain.cluster import World
from firetrain.config.files import user_path
from firetrain.config.names import AUTO_STRATEGY, PARAMETER_SERVER, STRATEGIES, is_placement_file, load_entry_point
from firetrain.config.spec import Spec
from firetrain.errors import UserError
from firetrain.limits import MOST_PLANNED_RANKS
from firetrain.strategy.file import ranks_of, strategy_of
from firetrain.strategy.layer import Layer
from firetrain.strategy.placement import Placement

# a pure function from a model's layers and a world to a placement
Strategy = Callable[[Sequence[Layer], World], Placement]


def find_strategy(text: str) -> Strategy:
    """The strategy `name` or `name:key=value,...`, or a placement file: a pure function from layers and a world to a placement.

    UserError if there is no such strategy, or if the file cannot be read. The function raises UserError if the layers or the
    ranks do not suit it.

    >>> layers = [Layer("conv", "weights", (), 3, 8, weights=9), Layer("loss", "whole", ("conv",), 8, 8, is_loss=True)]
    >>> placement = find_strategy("tensor-parallel:split=outputs")(layers, World.even(nodes=1, ranks_per_node=2))
    >>> placement.splits["conv"].outputs, placement.strategy
    (2, 'tensor-parallel:split=outputs')
    """
    if is_placement_file(text):
        found = _limited(text, strategy_of(user_path(text)))
        _refuse_so_many(text, ranks_of(user_path(text)))
        return found
    spec = Spec.parse(text)
    if spec.name == AUTO_STRATEGY:
        raise UserError(
            f"strategy {spec} is searched when training starts; firetrain search --out FILE writes the placement, "
            "and FILE can be given here"
        )
    if spec.name == PARAMETER_SERVER:
        raise UserError(f"strategy {spec} places no model on ranks: the weights belong to servers; use it with launch")
    function: Callable[..., Placement] = load_entry_point(STRATEGIES, spec.name)
    arguments = spec.arguments(function, given=2)

    def strategy(layers: Sequence[Layer], world: World) -> Placement:
        return replace(function(layers, world, **arguments), strategy=str(spec))

    strategy.__doc__ = function.__doc__
    return _limited(str(spec), strategy)


def _refuse_so_many(name: str, ranks: int) -> None:
    if ranks > MOST_PLANNED_RANKS:
        raise UserError(f"{name}: placements support at most {MOST_PLANNED_RANKS} ranks (got {ranks})")


def _limited(name: str, strategy: Strategy) -> Strategy:
    """The strategy with a limit of the ranks, for each of which it computes what it has of every layer."""

    @wraps(strategy)
    def limited(layers: Sequence[Layer], world: World) -> Placement:
        _refuse_so_many(name, world.size)
        return strategy(layers, world)

    return limited
