"""Delta simulation: the time of a step after one variable has changed, from what was simulated before."""

from __future__ import annotations

from firetrain.search.clock import Clock, Rest, State, preceded
from firetrain.search.problem import Choice


class Delta:
    """A simulated step, whose grids can be changed one variable at a time.

    Kept are the state before each layer's backward pass and what follows it. A change is simulated from the last layer that it
    touches until no other layer is touched and the open bucket is as before; the rest is known.
    """

    def __init__(self, clock: Clock, choice: Choice) -> None:
        self._clock = clock
        self._touched = _touched(clock)
        self.choice = choice
        self.step_ns = 0
        self._begin(choice)

    def after(self, changes: dict[int, int]) -> int:
        """The time of a step in which these variables have these grids."""
        choice = _changed(self.choice, changes)
        touched = sorted({layer for variable in changes for layer in self._touched[variable]}, reverse=True)
        ahead_ns = self._ahead_ns
        for layer in touched:
            ahead_ns += self._clock.ahead_ns(choice, layer) - self._ahead[layer]
        layer, first = touched[0], touched[-1]
        state = self._before[layer]
        while layer >= 0:
            state, _ = self._clock.backward(choice, layer, state)
            layer -= 1
            if layer < first and state[2:] == self._before[layer][2:]:
                break
        rest = self._rest[layer] if layer >= 0 else self._clock.rest_at_end(state)
        return max(state.compute_ns + rest.after_compute_ns, state.sums_ns + rest.after_sums_ns) + ahead_ns

    def change(self, changes: dict[int, int]) -> None:
        """Keep changes."""
        self._begin(_changed(self.choice, changes))

    def _begin(self, choice: Choice) -> None:
        clock, count = self._clock, len(self._clock.problem.names)
        self.choice = choice
        self._ahead = [clock.ahead_ns(choice, layer) for layer in range(count)]
        self._ahead_ns = sum(self._ahead)
        # at position -1: after the first layer
        self._before: dict[int, State] = {count - 1: State()}
        passages = {}
        for layer in reversed(range(count)):
            self._before[layer - 1], passages[layer] = clock.backward(choice, layer, self._before[layer])
        self._rest: dict[int, Rest] = {}
        rest = clock.rest_at_end(self._before[-1])
        for layer in range(count):
            rest = self._rest[layer] = preceded(rest, passages[layer])
        self.step_ns = clock.end_ns(self._before[-1]) + self._ahead_ns


def _changed(choice: Choice, changes: dict[int, int]) -> Choice:
    return tuple(changes.get(variable, grid) for variable, grid in enumerate(choice))


def _touched(clock: Clock) -> list[set[int]]:
    """The layers whose time depends on a variable: its own layers, and those whose output these read."""
    problem = clock.problem
    found = [set(layers) for layers in problem.layers_of]
    for edge in problem.edges:
        found[problem.variables[edge.layer]].add(edge.source)
    return found
