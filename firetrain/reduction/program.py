"""One rank's part of a plan: what it sends and receives, and what each send has to wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from firetrain.topology import Plan


class Receive(NamedTuple):
    """A receive, with the rank's earlier sends of the same chunk, which must be out before the chunk changes.

    `in_place`: a copy may land in the buffer itself as soon as it comes. It holds the complete sum, so this rank's share
    of it has been sent and has arrived; if that was its only send of the chunk, nobody reads the buffer any more.
    """

    number: int
    source: int
    chunk: int
    adds: bool
    after_sends: tuple[int, ...]
    in_place: bool


class Send(NamedTuple):
    """A send."""

    number: int
    target: int
    chunk: int


@dataclass(frozen=True)
class Program:
    """A rank's receives in the plan's order; `sends[k]` may leave once the first k receives are done."""

    rank: int
    receives: tuple[Receive, ...]
    sends: tuple[tuple[Send, ...], ...]


def program(plan: Plan, rank: int, length: int) -> Program:
    """The part of `rank` in `plan` for a buffer of `length` elements; chunks that are empty are skipped on both sides."""
    receives: list[Receive] = []
    sends: list[tuple[int, Send]] = []
    last_receive: dict[int, int] = {}
    sent: dict[int, list[int]] = {}
    for index, (source, target, chunk, adds) in enumerate(plan.transfers):
        start, end = plan.bounds(chunk, length)
        if rank not in (source, target) or start == end:
            continue
        if rank == source:
            sends.append((last_receive.get(chunk, 0), Send(index, target, chunk)))
            sent.setdefault(chunk, []).append(index)
        else:
            earlier = tuple(sent.get(chunk, ()))
            receives.append(Receive(index, source, chunk, adds, earlier, in_place=not adds and len(earlier) <= 1))
            last_receive[chunk] = len(receives)
    ready = tuple(tuple(send for after, send in sends if after == count) for count in range(len(receives) + 1))
    return Program(rank, tuple(receives), ready)
