"""The time of a step with given grids, on two clocks: one of compute and one of sums of gradients.

All ranks do the same at the same time, so one timeline stands for all of them. In the backward pass, from the last layer to the
first, with the compute clock c and the sum clock s:

- an exchange of d ns pauses the sums: s = max(s, c) + d, c = c + d;
- a layer is computed in b ns: c = c + b;
- its gradients are added to the open bucket: s = max(s, c);
- a bucket is summed in g ns when it is full, or when gradients follow that other ranks sum: s = s + g.

The step ends at max(c, s). The forward pass and the update delay both clocks alike. Times are whole nanoseconds, whose sums do
not depend on their order, so full and delta simulation give the same bits.
"""

from __future__ import annotations

from typing import NamedTuple

from firetrain.search.problem import Choice, Problem


class Clocks(NamedTuple):
    """The clocks between two events, in nanoseconds, and the open bucket: how many ranks sum it, and its bytes."""

    compute_ns: int = 0
    sums_ns: int = 0
    ranks: int = 0
    bucket_bytes: int = 0


class Rest(NamedTuple):
    """What follows a state: the step ends at max(compute_ns + `after_compute_ns`, sums_ns + `after_sums_ns`)."""

    after_compute_ns: int = 0
    after_sums_ns: int = 0

    def end_ns(self, state: Clocks) -> int:
        """When the step ends."""
        return max(state.compute_ns + self.after_compute_ns, state.sums_ns + self.after_sums_ns)


class Event(NamedTuple):
    """An exchange, or the backward pass of a layer with what it does to the bucket; all in nanoseconds.

    `before_ns` is of a bucket that must be summed because other ranks sum this layer's gradients; `full_ns` of a bucket that
    they fill.
    """

    exchange_ns: int
    backward_ns: int
    before_ns: int
    adds: bool
    full_ns: int


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
        """The position of the first event."""
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

    def after(self, choice: Choice, position: int, state: Clocks) -> tuple[Clocks, Event]:
        """The state after the event at a position, and the event."""
        self.events += 1
        layer, exchanges = divmod(position, 2)
        open_ranks, open_bytes = state.ranks, state.bucket_bytes
        if exchanges:
            event = Event(self._exchange_ns(choice, layer), 0, 0, False, 0)
            return Clocks(*_passed(state, event), open_ranks, open_bytes), event
        grid = choice[self.problem.variables[layer]]
        size, ranks = self._gradient_bytes[layer][grid], self.problem.grids[grid].images
        before_ns = full_ns = 0
        if size:
            if open_bytes and open_ranks != ranks:
                before_ns, open_bytes = self.problem.sums(open_ranks, open_bytes), 0
            open_ranks, open_bytes = ranks, open_bytes + size
            if open_bytes >= self.problem.bucket_bytes:
                full_ns, open_bytes = self.problem.sums(ranks, open_bytes), 0
        if not open_bytes:
            open_ranks = 0
        event = Event(0, self._backward[layer][grid], before_ns, bool(size), full_ns)
        return Clocks(*_passed(state, event), open_ranks, open_bytes), event

    def end_ns(self, state: Clocks) -> int:
        """The end of the step after its last event; an open bucket is summed first."""
        last_ns = self.problem.sums(state.ranks, state.bucket_bytes) if state.bucket_bytes else 0
        return max(state.compute_ns, state.sums_ns + last_ns)

    def rest_at_end(self, state: Clocks) -> Rest:
        """What follows the first layer's backward pass."""
        return Rest(0, self.problem.sums(state.ranks, state.bucket_bytes) if state.bucket_bytes else 0)

    def _exchange_ns(self, choice: Choice, layer: int) -> int:
        variables, own = self.problem.variables, choice[self.problem.variables[layer]]
        return sum(ns[own][choice[variables[other]]] for other, ns in self._edges[layer])


def _passed(state: Clocks, event: Event) -> tuple[int, int]:
    """The clocks after an event."""
    compute_ns, sums_ns = state.compute_ns, state.sums_ns
    if event.exchange_ns:
        sums_ns = max(sums_ns, compute_ns) + event.exchange_ns
        compute_ns += event.exchange_ns
    compute_ns += event.backward_ns
    sums_ns += event.before_ns
    if event.adds:
        sums_ns = max(sums_ns, compute_ns) + event.full_ns
    return compute_ns, sums_ns


def preceded(rest: Rest, event: Event) -> Rest:
    """What follows the state before an event, from what follows the state after it."""
    of_compute, of_sums = rest
    if event.adds:
        of_sums += event.full_ns
        of_compute = max(of_compute, of_sums)
    of_sums += event.before_ns
    of_compute += event.backward_ns
    if event.exchange_ns:
        of_sums += event.exchange_ns
        of_compute = max(of_compute + event.exchange_ns, of_sums)
    return Rest(of_compute, of_sums)
