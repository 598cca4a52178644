"""A reduction plan is data: who sends which chunk to whom, in an order that respects dependencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Transfer(NamedTuple):
    """`source` sends its present content of `chunk`; `target` adds it to its own, or takes it over as a copy."""

    source: int
    target: int
    chunk: int
    adds: bool

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}, chunk {self.chunk}, {'adds' if self.adds else 'copies'}"


@dataclass(frozen=True)
class Plan:
    """An all-reduce over `ranks` ranks: a buffer cut into `chunks` nearly equal parts, and the transfers in order.

    Meaning: executed one after another, the transfers leave every rank with the sum over all ranks. Any execution that
    keeps, at each rank, the order of the transfers that touch the same chunk gives the same bits.
    """

    topology: str
    ranks: int
    chunks: int
    transfers: tuple[Transfer, ...]

    def bounds(self, chunk: int, length: int) -> tuple[int, int]:
        """First element of `chunk` and the one after its last in a buffer of `length` elements; may be empty."""
        return chunk * length // self.chunks, (chunk + 1) * length // self.chunks

    def rounds(self) -> list[list[int]]:
        """Indices into `transfers`, grouped so that the transfers of a round can be under way together.

        A send waits for what its rank received before into the chunk; a receive waits for whatever its rank did before
        with the chunk, except that several adds into one chunk share a round (they are added in the plan's order). The
        number of rounds is the plan's depth.
        """
        sent: dict[tuple[int, int], int] = {}
        received: dict[tuple[int, int], int] = {}
        added: dict[tuple[int, int], int] = {}
        rounds: list[list[int]] = []
        for index, (source, target, chunk, adds) in enumerate(self.transfers):
            out, into = (source, chunk), (target, chunk)
            number = max(received.get(out, -1), added.get(out, -1), sent.get(into, -1), received.get(into, -1)) + 1
            number = max(number, added.get(into, -1) + (0 if adds else 1))
            sent[out] = max(sent.get(out, -1), number)
            if adds:
                added[into] = number
            else:
                received[into] = number
            if number == len(rounds):
                rounds.append([])
            rounds[number].append(index)
        return rounds

    def bytes_sent(self, length_bytes: int) -> list[int]:
        """Bytes that each rank sends for a buffer of `length_bytes` one-byte elements."""
        sizes = [end - start for start, end in (self.bounds(chunk, length_bytes) for chunk in range(self.chunks))]
        totals = [0] * self.ranks
        for transfer in self.transfers:
            totals[transfer.source] += sizes[transfer.chunk]
        return totals

    def bytes_received(self, length_bytes: int) -> list[int]:
        """Bytes that each rank receives for a buffer of `length_bytes` one-byte elements."""
        turned = [Transfer(t.target, t.source, t.chunk, t.adds) for t in self.transfers]
        return Plan(self.topology, self.ranks, self.chunks, tuple(turned)).bytes_sent(length_bytes)
