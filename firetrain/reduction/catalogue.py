"""Finds reductions by name: entry points, and topologies, whose plans are executed."""

from __future__ import annotations

from firetrain.config.names import REDUCTIONS, installed_names, load_entry_point
from firetrain.config.spec import Spec
from firetrain.reduction.context import Context, Factory
from firetrain.reduction.executor import execute
from firetrain.reduction.interface import Alone, Reduction
from firetrain.topology import find_topology


def find_reduction(text: str, context: Context) -> Reduction:
    """The reduction `name` or `name:key=value,...` over the ranks of `context`; for a single rank, no communication.

    Collective over all ranks. UserError if there is no such reduction, or if a parameter does not fit these ranks.
    """
    if context.transport.size == 1:
        return Alone()
    spec = Spec.parse(text)
    if spec.name in installed_names(REDUCTIONS):
        factory: Factory = load_entry_point(REDUCTIONS, spec.name)
        return factory(context, **spec.arguments(factory))
    return execute(find_topology(text), context)
