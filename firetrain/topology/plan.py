"""A reduction plan is data: who sends which chunk to whom, in an order that respects dependencies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import repeat
from typing import NamedTuple


class Transfer(NamedTuple):
    """`source` sends its present content of `chunk`; `target` adds it to its own, or takes it over as a copy."""

    source: int
    target: int
    chunk: int
    adds: bool

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}, chunk {self.chunk}, {'adds' if self.adds else 'copies'}"


class Claim(NamedTuple):
    """A plan's closed form, which `topology check` compares with the transfers.

    `depth` in rounds; `busiest`: the most that one rank sends, or receives, in units of the buffer.
    """

    depth: int
    busiest: Fraction


@dataclass(frozen=True)
class Plan:
    """An all-reduce over `ranks` ranks: a buffer cut into `chunks` nearly equal parts, and the transfers in order.

    Meaning: executed one after another, the transfers leave every rank with the sum over all ranks. Any execution that
    keeps, at each rank, the order of the transfers that touch the same chunk gives the same bits.

    `pipelined`: chunks may be cut into pieces that follow one another through the transfers. `rank_order`: what a rank
    adds into a chunk is summed in the order of the ranks, its own content in its place, whichever rank does the adding.
    `not_before`: a round for each transfer, so that transfers which could leave earlier travel together with others.
    """

    topology: str
    ranks: int
    chunks: int
    transfers: tuple[Transfer, ...]
    pipelined: bool = False
    rank_order: bool = False
    not_before: tuple[int, ...] = ()
    claim: Claim | None = None

    def bounds(self, chunk: int, length: int) -> tuple[int, int]:
        """First element of `chunk` and the one after its last in a buffer of `length` elements; may be empty."""
        return chunk * length // self.chunks, (chunk + 1) * length // self.chunks

    def neighbours(self, rank: int) -> set[int]:
        """The ranks that `rank` sends to or receives from."""
        pairs = {(source, target) for source, target, _, _ in self.transfers}
        return {source + target - rank for source, target in pairs if rank in (source, target)}

    @cached_property
    def round_of(self) -> list[int]:
        """The round of each transfer, from 0: transfers of one round can be under way together.

        A send waits for what its rank received before into the chunk; a receive waits for whatever its rank did before
        with the chunk, except that several adds into one chunk share a round (they are added in the plan's order).
        """
        # the first round that each rank's chunk leaves free for a send, an add and a copy
        places = self.ranks * self.chunks
        send, add, copy = [0] * places, [0] * places, [0] * places
        numbers = []
        for (source, target, chunk, adds), earliest in zip(self.transfers, self.not_before or repeat(0), strict=False):
            out, into = source * self.chunks + chunk, target * self.chunks + chunk
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
        """Indices into `transfers` by round, in the plan's order."""
        rounds: list[list[int]] = [[] for _ in range(self.depth)]
        for index, number in enumerate(self.round_of):
            rounds[number].append(index)
        return rounds

    def in_rounds(self) -> Plan:
        """The same plan with its transfers in order of rounds, so that between two ranks none stands behind a later one."""
        order = [index for indices in self.rounds() for index in indices]
        not_before = tuple(self.round_of[index] for index in order) if self.not_before else ()
        return replace(self, transfers=tuple(self.transfers[index] for index in order), not_before=not_before)

    def bytes_sent(self, length_bytes: int) -> list[int]:
        """Bytes that each rank sends for a buffer of `length_bytes` one-byte elements."""
        return self._bytes(length_bytes, 0)

    def bytes_received(self, length_bytes: int) -> list[int]:
        """Bytes that each rank receives for a buffer of `length_bytes` one-byte elements."""
        return self._bytes(length_bytes, 1)

    def busiest(self) -> Fraction:
        """The most that one rank sends, or receives, in units of the buffer."""
        most = max((*self.bytes_sent(self.chunks), *self.bytes_received(self.chunks)))
        return Fraction(most, self.chunks)

    def _bytes(self, length_bytes: int, end: int) -> list[int]:
        sizes = [end - start for start, end in (self.bounds(chunk, length_bytes) for chunk in range(self.chunks))]
        totals = [0] * self.ranks
        for transfer in self.transfers:
            totals[transfer[end]] += sizes[transfer.chunk]
        return totals
