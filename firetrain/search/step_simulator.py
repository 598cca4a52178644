"""The time of a step with given grids, on two clocks: one of compute and one of sums of gradients.

All ranks do the same at the same time, so one timeline stands for all of them. In the backward pass, from the last layer to the
first, with the compute clock c and the sum clock s:

- an exchange of d ns pauses the sums: s = max(s, c) + d, c = c + d;
- a layer is computed in b ns: c = c + b;
- if its gradients do not fit into the open bucket, or are summed by other ranks, the open bucket is summed in g ns since its
  last gradient was added: s = s + g. A sum takes a share of its time from compute: c = c + stolen g, but only after this layer;
- its gradients are added to the open bucket: s = max(s, c).

The open bucket is summed at the end, and the step ends at max(c, s). The forward pass and the update delay both clocks alike.
Times are whole nanoseconds, whose sums do not depend on their order, so full and delta simulation give the same bits.
"""

from __future__ import annotations

from typing import NamedTuple

from firetrain.search.problem import Choice, Problem


class Clocks(NamedTuple):
    """The clocks between two events, in nanoseconds, and the open bucket: how many ranks sum it, and its bytes.

    `later`: 1 if another bucket of these ranks has been summed just before it. The first one has a quarter of the size.
    """

    compute_ns: int = 0
    sums_ns: int = 0
    ranks: int = 0
    bucket_bytes: int = 0
    later: int = 0


class Rest(NamedTuple):
    """What follows a state: the step ends at max(compute_ns + `after_compute_ns`, sums_ns + `after_sums_ns`)."""

    after_compute_ns: int = 0
    after_sums_ns: int = 0

    def end_ns(self, state: Clocks) -> int:
        """When the step ends."""
        return max(state.compute_ns + self.after_compute_ns, state.sums_ns + self.after_sums_ns)


class StepEvent(NamedTuple):
    """An exchange, or the backward pass of a layer; all in nanoseconds.

    `adds`: whether the layer has gradients that are summed. `sum_ns`: time to sum the open bucket, if these gradients do not go
    into it; otherwise 0. `stolen_ns`: compute time that this sum takes.
    """

    exchange_ns: int
    backward_ns: int
    adds: bool
    sum_ns: int
    stolen_ns: int


class StepSimulator:
    """Simulates steps of a problem, event by event; `events` counts them.

    The backward pass of a layer is two events: at position 2 layer + 1 its output's gradient is exchanged, and at 2 layer it is
    computed. A step goes from the largest position to 0.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.events = 0
        self._ahead = (problem.forward_ns + problem.update_ns).tolist()
        self._backward, self._gradient_bytes = problem.backward_ns.tolist(), problem.gradient_bytes.tolist()
        self._edges = [[(edge.layer, edge.ns.tolist()) for edge in edges] for edges in problem.edges_from]

    @property
    def last(self) -> int:
        """The largest position, at which a step begins."""
        return 2 * len(self.problem.names) - 1

    def step_ns(self, choice: Choice) -> int:
        """The time of a step, by full simulation."""
        state = Clocks()
        for position in range(self.last, -1, -1):
            state, _ = self.after(choice, position, state)
        return self.end_ns(state) + sum(self.ahead_ns(choice, layer) for layer in range(len(self.problem.names)))

    def ahead_ns(self, choice: Choice, layer: int) -> int:
        """The time of a layer that delays both clocks: forward pass, update, and the forward exchange of its output."""
        own: int = self._ahead[layer][choice[self.problem.variables[layer]]]
        return own + self._exchange_ns(choice, layer)

    def after(self, choice: Choice, position: int, state: Clocks) -> tuple[Clocks, StepEvent]:
        """The state after the event at a position, and the event."""
        self.events += 1
        layer, exchanges = divmod(position, 2)
        if exchanges:
            event = StepEvent(self._exchange_ns(choice, layer), 0, False, 0, 0)
            return Clocks(*_passed(state, event), state.ranks, state.bucket_bytes, state.later), event
        grid = choice[self.problem.variables[layer]]
        size, ranks = self._gradient_bytes[layer][grid], self.problem.grids[grid].images
        held, later, sum_ns = state.bucket_bytes, state.later, 0
        if size and held:
            is_other = state.ranks != ranks
            if is_other or held + size > self.problem.most_bytes(later):
                sum_ns, held, later = self.problem.sums(state.ranks, held), 0, int(not is_other)
        event = StepEvent(0, self._backward[layer][grid], bool(size), sum_ns, self.problem.stolen_ns(sum_ns))
        clocks = _passed(state, event)
        return Clocks(*clocks, ranks, held + size, later) if size else Clocks(*clocks, *state[2:]), event

    def end_ns(self, state: Clocks) -> int:
        """The end of the step after its last event."""
        return self.rest_at_end(state).end_ns(state)

    def rest_at_end(self, state: Clocks) -> Rest:
        """What follows the first layer's backward pass: the sum of the open bucket."""
        sum_ns = self.problem.sums(state.ranks, state.bucket_bytes) if state.bucket_bytes else 0
        return Rest(self.problem.stolen_ns(sum_ns), sum_ns)

    def _exchange_ns(self, choice: Choice, layer: int) -> int:
        variables, own = self.problem.variables, choice[self.problem.variables[layer]]
        return sum(ns[own][choice[variables[other]]] for other, ns in self._edges[layer])


def _passed(state: Clocks, event: StepEvent) -> tuple[int, int]:
    """The clocks after an event."""
    compute_ns, sums_ns = state.compute_ns, state.sums_ns
    if event.exchange_ns:
        sums_ns = max(sums_ns, compute_ns) + event.exchange_ns
        compute_ns += event.exchange_ns
    compute_ns += event.backward_ns
    if event.adds:
        sums_ns = max(sums_ns + event.sum_ns, compute_ns)
    return compute_ns + event.stolen_ns, sums_ns


def rest_before(event: StepEvent, rest: Rest) -> Rest:
    """The rest before an event, given the rest after it."""
    of_compute, of_sums = rest
    of_compute += event.stolen_ns
    if event.adds:
        of_compute = max(of_compute, of_sums)
        of_sums += event.sum_ns
    of_compute += event.backward_ns
    if event.exchange_ns:
        of_sums += event.exchange_ns
        of_compute = max(of_compute + event.exchange_ns, of_sums)
    return Rest(of_compute, of_sums)
