"""Reduction plans as data: which rank sends which chunk to which rank, in an order that respects dependencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import repeat
from typing import NamedTuple


class Transfer(NamedTuple):
    """`source` sends its current content of `chunk`; `target` adds it (adds=True) or overwrites its own (adds=False).

    >>> print(Transfer(source=1, target=0, chunk=2, adds=True))
    1 -> 0, chunk 2, adds
    """

    source: int
    target: int
    chunk: int
    adds: bool

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}, chunk {self.chunk}, {'adds' if self.adds else 'copies'}"


class Claim(NamedTuple):
    """The closed form of a plan's cost, which `topology check` compares with the transfers.

    - `depth`: number of rounds.
    - `busiest`: largest amount that one rank sends or receives, as a multiple of the buffer.

    >>> Claim(depth=6, busiest=Fraction(3, 2))  # a ring of four ranks
    Claim(depth=6, busiest=Fraction(3, 2))
    """

    depth: int
    busiest: Fraction


@dataclass(frozen=True)
class Plan:
    """An all-reduce as an ordered list of transfers. Executed one after another, they leave every rank with the sum.

    Every execution that keeps, on each rank, the order of the transfers of the same chunk gives the same bits.

    - `topology`: name of the topology that made the plan.
    - `ranks`: number of ranks.
    - `chunks`: number of nearly equal parts of the buffer.
    - `transfers`: the transfers, in order.
    - `pipelined`: chunks may be split into pieces that pass through the transfers one after another.
    - `rank_order`: contributions to a chunk are summed in rank order, whichever rank adds them.
    - `not_before`: earliest round per transfer; delays a transfer so that it can be merged with others.
    - `claim`: closed form of the plan's cost.
    - `members`: rank numbers set by `on`; empty means 0 to `ranks` - 1.

    >>> there, back = Transfer(1, 0, 0, adds=True), Transfer(0, 1, 0, adds=False)
    >>> plan = Plan("example", ranks=2, chunks=1, transfers=(there, back))
    >>> plan.depth, plan.bytes_sent(1024)
    (2, [1024, 1024])
    >>> print(plan.on([3, 7]).transfers[0])
    7 -> 3, chunk 0, adds
    """

    topology: str
    ranks: int
    chunks: int
    transfers: tuple[Transfer, ...]
    pipelined: bool = False
    rank_order: bool = False
    not_before: tuple[int, ...] = ()
    claim: Claim | None = None
    members: tuple[int, ...] = ()

    def on(self, members: Sequence[int]) -> Plan:
        """The same plan for ranks of a larger world: rank i of this plan becomes `members[i]`.

        ValueError if the number of different members is not that of the plan's ranks, or if the plan sums in rank order and
        the members do not ascend.
        """
        if len(members) != self.ranks or len(set(members)) != self.ranks:
            raise ValueError(
                f"a plan for {self.ranks} ranks needs as many different members (members: {list(members)})"
            )
        if self.rank_order and list(members) != sorted(members):
            raise ValueError(f"{self.topology} sums in rank order: its members must ascend (members: {list(members)})")
        renamed = {rank: members[position] for rank, position in self.position_of.items()}
        transfers = tuple(
            Transfer(renamed[source], renamed[target], chunk, adds) for source, target, chunk, adds in self.transfers
        )
        return replace(self, transfers=transfers, members=tuple(members))

    @cached_property
    def position_of(self) -> dict[int, int]:
        """The index of each rank among the plan's ranks, from 0."""
        return {rank: position for position, rank in enumerate(self.members or range(self.ranks))}

    def bounds(self, chunk: int, length: int) -> tuple[int, int]:
        """(start, end) of `chunk` in a buffer of `length` elements; a chunk may be empty."""
        return chunk * length // self.chunks, (chunk + 1) * length // self.chunks

    def neighbours(self, rank: int) -> set[int]:
        """The ranks that `rank` sends to or receives from."""
        pairs = {(source, target) for source, target, _, _ in self.transfers}
        return {source + target - rank for source, target in pairs if rank in (source, target)}

    @cached_property
    def round_of(self) -> list[int]:
        """The round of each transfer, from 0; transfers of the same round can be under way together.

        A send waits for earlier receives of its rank into the chunk. A receive waits for all earlier sends and receives of its
        rank of the chunk, except that several adds into one chunk share a round (they are added in the plan's order).
        """
        # the earliest round in which each (rank, chunk) may next send, add or copy
        cells = self.ranks * self.chunks
        send, add, copy = [0] * cells, [0] * cells, [0] * cells
        position_of = self.position_of
        numbers = []
        for (source, target, chunk, adds), earliest in zip(self.transfers, self.not_before or repeat(0), strict=False):
            out, into = position_of[source] * self.chunks + chunk, position_of[target] * self.chunks + chunk
            number = max(earliest, send[out], add[into] if adds else copy[into])
            add[out], copy[out] = max(add[out], number + 1), max(copy[out], number + 1)
            send[into], copy[into] = number + 1, number + 1
            add[into] = number if adds else number + 1
            numbers.append(number)
        return numbers

    @property
    def depth(self) -> int:
        """The number of rounds."""
        return max(self.round_of, default=-1) + 1

    def rounds(self) -> list[list[int]]:
        """The indices of the transfers in each round, in the plan's order."""
        rounds: list[list[int]] = [[] for _ in range(self.depth)]
        for index, number in enumerate(self.round_of):
            rounds[number].append(index)
        return rounds

    def in_rounds(self) -> Plan:
        """The same plan with its transfers in order of rounds, as `faults` requires for transfers between two ranks."""
        order = [index for indices in self.rounds() for index in indices]
        not_before = tuple(self.round_of[index] for index in order) if self.not_before else ()
        return replace(self, transfers=tuple(self.transfers[index] for index in order), not_before=not_before)

    def bytes_sent(self, length_bytes: int) -> list[int]:
        """The bytes that each rank sends for a buffer of `length_bytes`, by position."""
        return self._bytes(length_bytes, 0)

    def bytes_received(self, length_bytes: int) -> list[int]:
        """The bytes that each rank receives for a buffer of `length_bytes`, by position."""
        return self._bytes(length_bytes, 1)

    def busiest(self) -> Fraction:
        """The largest amount that one rank sends or receives, as a multiple of the buffer."""
        most = max((*self.bytes_sent(self.chunks), *self.bytes_received(self.chunks)))
        return Fraction(most, self.chunks)

    def _bytes(self, length_bytes: int, end: int) -> list[int]:
        sizes = [end - start for start, end in (self.bounds(chunk, length_bytes) for chunk in range(self.chunks))]
        totals = [0] * self.ranks
        for transfer in self.transfers:
            totals[self.position_of[transfer[end]]] += sizes[transfer.chunk]
        return totals
