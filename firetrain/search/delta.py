"""Delta simulation: the time of a step after some variables have changed, from what was simulated before."""

from __future__ import annotations

from firetrain.search.problem import Choice
from firetrain.search.step_simulator import Clocks, Rest, StepEvent, StepSimulator, rest_before

# position, and the open bucket as in Clocks
_Key = tuple[int, int, int, int]


class Delta:
    """A simulated step, whose grids can be changed a few variables at a time.

    It stores the clocks before each event and, for each position and each open bucket met there so far, the rest of the step.
    After a change only the events from the first to the last affected one are simulated; the rest is looked up, or simulated once
    and stored.
    """

    def __init__(self, simulator: StepSimulator, choice: Choice) -> None:
        self._simulator = simulator
        self._touched = _touched(simulator)
        self.choice = choice
        self._begin()

    def after(self, changes: dict[int, int]) -> int:
        """The time of a step in which these variables have these grids."""
        choice = _changed(self.choice, changes)
        touched = {position for variable in changes for position in self._touched[variable]}
        ahead_ns = self._ahead_ns
        for layer in {position // 2 for position in touched}:
            ahead_ns += self._simulator.ahead_ns(choice, layer) - self._ahead[layer]
        first, end = max(touched), min(touched) - 1
        state = self._before[first]
        for position in range(first, end, -1):
            state, _ = self._simulator.after(choice, position, state)
        return self._rest_of(end, state).end_ns(state) + ahead_ns

    def change(self, changes: dict[int, int]) -> None:
        """Take these changes into the simulated step, so that later ones start from there."""
        self.choice = _changed(self.choice, changes)
        self._begin()

    def _begin(self) -> None:
        simulator = self._simulator
        self._ahead = [simulator.ahead_ns(self.choice, layer) for layer in range(len(simulator.problem.names))]
        self._ahead_ns = sum(self._ahead)
        self._rests: dict[_Key, Rest] = {}
        self._before = {simulator.last: Clocks()}
        self._rest_of(simulator.last, Clocks())
        for position in range(simulator.last, -1, -1):
            self._before[position - 1], _ = simulator.after(self.choice, position, self._before[position])
        self.step_ns = simulator.end_ns(self._before[-1]) + self._ahead_ns

    def _rest_of(self, position: int, state: Clocks) -> Rest:
        """What follows a state, if all events from this position on have the grids that are kept."""
        passed: list[tuple[_Key, StepEvent]] = []
        key = (position, *state[2:])
        while position >= 0 and key not in self._rests:
            state, event = self._simulator.after(self.choice, position, state)
            passed.append((key, event))
            position -= 1
            key = (position, *state[2:])
        rest = self._rests[key] if position >= 0 else self._simulator.rest_at_end(state)
        for key, event in reversed(passed):
            rest = self._rests[key] = rest_before(event, rest)
        return rest


def _changed(choice: Choice, changes: dict[int, int]) -> Choice:
    return tuple(changes.get(variable, grid) for variable, grid in enumerate(choice))


def _touched(simulator: StepSimulator) -> list[set[int]]:
    """The positions of the events that depend on a variable: those of its layers, and the exchanges of what these read."""
    problem = simulator.problem
    found = [{position for layer in layers for position in (2 * layer, 2 * layer + 1)} for layers in problem.layers_of]
    for edge in problem.edges:
        found[problem.variables[edge.layer]].add(2 * edge.source + 1)
    return found
