"""The fastest grids, found exactly by a label search, with a proof.

A label is a set of decisions for the last layers: the grids that still matter, both clocks, the open bucket and the memory.
Layers are decided from the last to the first, which is the order of the backward pass. A label is dropped if another one with
the same grids and the same open bucket is not later on either clock and needs no more memory, or if its bound is not below the
best step known. The bound is a weighted mean of both clocks, plus the least that the remaining layers add to it: their compute
time, and their share of the time of the largest buckets in which they can be summed. Exchanges, overlap and buckets are in the
clocks of labels, so the step that remains is the fastest of all.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firetrain.search.frontier import Numbers, frontiers, is_narrow, least
from firetrain.search.problem import Choice, Int64Array, Problem

# weights of the sum clock in the bounds
_WEIGHTS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
MOST_LABELS = 200_000
_NEVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Optimum:
    """The fastest grids that were found.

    - `choice`, `step_ns`: the grids, and the time of their step; None and the limit if nothing is faster than the limit.
    - `bound_ns`: no choice is faster; equal to `step_ns` unless labels had to be left out.
    - `labels`: number of labels that were kept. `seconds`: time of the search.
    """

    choice: Choice | None
    step_ns: int
    bound_ns: int
    labels: int
    seconds: float

    @property
    def is_proven(self) -> bool:
        """Whether nothing in the space is faster."""
        return self.bound_ns >= self.step_ns


@dataclass
class _Labels:
    """Labels as columns. `grids`: int64 [labels, variables of the frontier]; the others int64 [labels].

    `ranks`, `bucket_bytes`, `later`: the open bucket, as in Clocks. `parent`: number of the label from which each one was made.
    `own`: its grid of the layer that was decided last.
    """

    grids: Int64Array
    compute_ns: Int64Array
    sums_ns: Int64Array
    ranks: Int64Array
    bucket_bytes: Int64Array
    later: Int64Array
    memory_bytes: Int64Array
    parent: Int64Array
    own: Int64Array

    def __len__(self) -> int:
        return len(self.compute_ns)

    def only(self, which: NDArray[np.bool_] | Int64Array) -> _Labels:
        """The labels with these numbers, or where a mask is true."""
        return _Labels(**{name: column[which] for name, column in self.__dict__.items()})


class _Mean(NamedTuple):
    """A mean of both clocks at the end, of which the sum clock has `weight`, is no later than the step's end.

    `delay`: how many times sums count. `remaining`: for each layer, the least that it and all before it add, as from `least`.
    """

    weight: float
    delay: float
    remaining: list[Numbers]


class _LabelSearch:
    def __init__(self, problem: Problem, best_ns: int, most_labels: int) -> None:
        self._problem, self._most = problem, most_labels
        self._after = frontiers(problem)
        images = np.array([grid.images for grid in problem.grids])
        self._images = images
        ahead, backward = (problem.forward_ns + problem.update_ns).astype(float), problem.backward_ns.astype(float)
        sums = self._least_sums(np.broadcast_to(images, problem.gradient_bytes.shape), problem.gradient_bytes)
        # the first layer's gradients are in the last bucket, which is summed when nothing is left to compute
        last = np.zeros(sums.shape)
        last[0] = self._sums(images, problem.gradient_bytes[0])
        self._means = [self._mean(weight, 0.0, ahead, backward + last, sums) for weight in _WEIGHTS]
        if problem.stolen_per_mille:
            # nor does the last bucket wait for what the one before it takes from compute
            stolen = problem.stolen_per_mille / 1000
            self._means += [self._mean(weight, stolen, ahead, backward, sums) for weight in _WEIGHTS]
        self._remaining_memory = least(problem, problem.memory_bytes.astype(float), exchanges=0.0)
        self._best_ns = best_ns
        self._left_out_ns = np.iinfo(np.int64).max
        self._history: list[tuple[Int64Array, Int64Array]] = []

    def _mean(self, weight: float, stolen: float, ahead: Numbers, compute: Numbers, sums: Numbers) -> _Mean:
        """The mean with a weight of the sum clock; a sum delays its own clock, and that of compute by a share `stolen`."""
        delay = weight + (1 - weight) * stolen
        return _Mean(weight, delay, least(self._problem, ahead + (1 - weight) * compute + delay * sums, exchanges=2.0))

    def run(self) -> Optimum:
        began_s, count = time.perf_counter(), 0
        none = np.zeros(1, np.int64)
        labels = _Labels(np.zeros((1, 0), np.int64), none, none, none, none, none, none, none, none)
        for layer in reversed(range(len(self._problem.names))):
            labels = self._kept(self._decided(labels, layer), layer)
            self._history.append((labels.parent, labels.own))
            count += len(labels)
        choice, step_ns = None, self._best_ns
        if len(labels):
            last_ns = self._sums(labels.ranks, labels.bucket_bytes)
            ends = np.maximum(labels.compute_ns + self._stolen(last_ns), labels.sums_ns + last_ns)
            if ends.min() < step_ns:
                choice, step_ns = self._choice(int(ends.argmin())), int(ends.min())
        bound_ns = min(step_ns, self._left_out_ns)
        return Optimum(choice, step_ns, bound_ns, count, time.perf_counter() - began_s)

    def _decided(self, labels: _Labels, layer: int) -> _Labels:
        """The labels with every grid of a layer, after its backward pass."""
        problem = self._problem
        # the variables whose grids the labels have before this layer
        variable, before = problem.variables[layer], self._after[layer]
        if variable in before:
            parent, own = np.arange(len(labels)), labels.grids[:, before.index(variable)]
        else:
            allowed = np.array(problem.allowed[variable])
            parent, own = np.repeat(np.arange(len(labels)), len(allowed)), np.tile(allowed, len(labels))
        grids = {name: labels.grids[parent, column] for column, name in enumerate(before)} | {variable: own}
        exchange_ns = np.zeros(len(own), np.int64)
        for edge in problem.edges_from[layer]:
            exchange_ns += edge.ns[own, grids[problem.variables[edge.layer]]]
        ahead_ns = problem.forward_ns[layer, own] + problem.update_ns[layer, own] + exchange_ns
        compute_ns, sums_ns = labels.compute_ns[parent], labels.sums_ns[parent]
        sums_ns = np.where(exchange_ns > 0, np.maximum(sums_ns, compute_ns) + exchange_ns, sums_ns)
        compute_ns = compute_ns + exchange_ns + problem.backward_ns[layer, own]
        ranks, size = labels.ranks[parent], labels.bucket_bytes[parent]
        added = problem.gradient_bytes[layer, own]
        later, adds, is_other = labels.later[parent], added > 0, ranks != self._images[own]
        full = size + added > np.where(later > 0, problem.most_bytes(1), problem.most_bytes(0))
        closes = adds & (size > 0) & (is_other | full)
        sum_ns = self._sums(ranks, np.where(closes, size, 0))
        sums_ns = np.where(adds, np.maximum(sums_ns + sum_ns, compute_ns), sums_ns)
        compute_ns = compute_ns + self._stolen(sum_ns)
        size, later = np.where(closes, 0, size) + added, np.where(closes, ~is_other, later)
        ranks = np.where(adds, self._images[own], ranks)
        after = [grids[name] for name in self._after[layer - 1]] if layer else []
        return _Labels(
            np.stack(after, axis=1) if after else np.zeros((len(own), 0), np.int64),
            compute_ns + ahead_ns, sums_ns + ahead_ns, ranks, size, later,
            labels.memory_bytes[parent] + problem.memory_bytes[layer, own], parent, own,
        )  # fmt: skip

    def _kept(self, labels: _Labels, layer: int) -> _Labels:
        """The labels that may still lead to a faster step."""
        bounds = self._bounds(labels, layer)
        possible = bounds < self._best_ns
        limit = self._problem.memory_limit_bytes
        if limit is not None:
            least_bytes = self._remaining_memory[layer - 1][tuple(labels.grids.T)] if layer else 0.0
            possible &= labels.memory_bytes + least_bytes <= limit
        labels, bounds = labels.only(possible), bounds[possible]
        kept = _undominated(labels, with_memory=limit is not None)
        labels, bounds = labels.only(kept), bounds[kept]
        if len(labels) > self._most:
            order = np.argsort(bounds, kind="stable")
            self._left_out_ns = min(self._left_out_ns, int(bounds[order[self._most]]))
            labels = labels.only(np.sort(order[: self._most]))
        return labels

    def _bounds(self, labels: _Labels, layer: int) -> NDArray[np.float64]:
        """Lower bounds of the step time of each label, in nanoseconds; rounded down because of float errors."""
        at = tuple(labels.grids.T)
        found = np.zeros(len(labels))
        open_ns = self._least_sums(labels.ranks, labels.bucket_bytes)
        for weight, delay, remaining in self._means:
            rest = remaining[layer - 1][at] if layer else 0.0
            mean = (1 - weight) * labels.compute_ns + weight * labels.sums_ns + delay * open_ns
            found = np.maximum(found, mean + rest)
        return np.floor(found * (1 - 1e-12))

    def _least_sums(self, ranks: Int64Array, sizes_bytes: Int64Array) -> NDArray[np.float64]:
        """What bytes of gradients add to sums at least."""
        found, most_bytes = np.zeros(ranks.shape), self._problem.most_bytes(1)
        for count in np.unique(ranks[sizes_bytes > 0]):
            which = (ranks == count) & (sizes_bytes > 0)
            found[which] = self._problem.sums.least(int(count), sizes_bytes[which], most_bytes)
        return found

    def _sums(self, ranks: Int64Array, sizes_bytes: Int64Array) -> Int64Array:
        found = np.zeros(len(ranks), np.int64)
        for count in np.unique(ranks[sizes_bytes > 0]):
            which = (ranks == count) & (sizes_bytes > 0)
            found[which] = self._problem.sums.many(int(count), sizes_bytes[which])
        return found

    def _stolen(self, sums_ns: Int64Array) -> Int64Array:
        """What sums take from compute, as in `Problem.stolen_ns`."""
        return -(-sums_ns * self._problem.stolen_per_mille // 1000)

    def _choice(self, number: int) -> Choice:
        """The grids of a label of the first layer."""
        found: dict[int, int] = {}
        for layer, (parent, own) in enumerate(reversed(self._history)):
            found[self._problem.variables[layer]] = int(own[number])
            number = int(parent[number])
        return tuple(found[variable] for variable in range(len(self._problem.allowed)))


def find_optimum(problem: Problem, limit_ns: int | None = None, most_labels: int = MOST_LABELS) -> Optimum:
    """The fastest grids of a problem. `limit_ns`: only faster steps are looked for, which saves labels.

    If there are more than `most_labels` labels, those with the largest bounds are left out, and `bound_ns` is their least
    bound. If frontiers are too wide, nothing is searched, and `bound_ns` is the computing time alone.
    """
    best_ns = _NEVER if limit_ns is None else limit_ns
    if not is_narrow(problem):
        return Optimum(None, best_ns, min(best_ns, _computing_ns(problem)), 0, 0.0)
    return _LabelSearch(problem, best_ns, most_labels).run()


def _computing_ns(problem: Problem) -> int:
    """The time of all layers, if the layers of each variable had the grid with which they are computed fastest."""
    of_layers = problem.forward_ns + problem.backward_ns + problem.update_ns
    tied = zip(problem.layers_of, problem.allowed, strict=True)
    return sum(int(of_layers[layers][:, list(allowed)].sum(axis=0).min()) for layers, allowed in tied)


def _undominated(labels: _Labels, *, with_memory: bool) -> Int64Array:
    """Numbers of the labels that no label with the same grids and open bucket dominates, ascending."""
    if not len(labels):
        return np.zeros(0, np.int64)
    group = _groups(labels)
    if not with_memory:
        order = np.lexsort((labels.sums_ns, labels.compute_ns, group))
        return np.sort(order[_lower_than_all_before(group[order], labels.sums_ns[order])])
    order = np.lexsort((labels.memory_bytes, labels.sums_ns, labels.compute_ns, group))
    kept: list[int] = []
    for own in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        best = _Stairs()
        kept += [int(one) for one in own if best.adds(int(labels.sums_ns[one]), int(labels.memory_bytes[one]))]
    return np.sort(np.array(kept, np.int64))


def _groups(labels: _Labels) -> Int64Array:
    """A number for each label; labels with the same grids and open bucket have the same one."""
    group = np.zeros(len(labels), np.int64)
    for column in (*labels.grids.T, labels.ranks, labels.bucket_bytes, labels.later):
        count = int(column.max()) + 1
        if int(group.max()) >= _NEVER // count - 1:
            group = np.unique(group, return_inverse=True)[1].astype(np.int64)
        group = group * count + column
    return group


class _Stairs:
    """Pairs of which none is at least as small as another one in both numbers: the first ascends, the second descends."""

    def __init__(self) -> None:
        self._first: list[int] = []
        self._second: list[int] = []

    def adds(self, first: int, second: int) -> bool:
        """Add a pair, in place of those that it makes superfluous; False if it is superfluous itself."""
        place = bisect_right(self._first, first)
        if place and self._second[place - 1] <= second:
            return False
        begin = end = bisect_left(self._first, first)
        while end < len(self._first) and self._second[end] >= second:
            end += 1
        self._first[begin:end], self._second[begin:end] = [first], [second]
        return True


def _lower_than_all_before(group: Int64Array, values: Int64Array) -> NDArray[np.bool_]:
    """For each value, whether it is below all values before it in its group. The values of a group stand together."""
    starts = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]]))
    number = np.cumsum(np.concatenate([[True], group[1:] != group[:-1]])) - 1
    # one running minimum for all groups: each group is shifted below the one before it
    width = int(values.max() - values.min()) + 1
    shifted = values - values.min() - number * width
    running = np.minimum.accumulate(shifted)
    found = np.concatenate([[True], shifted[1:] < running[:-1]])
    found[starts] = True
    return found
