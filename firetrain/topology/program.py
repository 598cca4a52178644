"""One rank's part of a plan for a buffer of some length: the messages it sends and receives, and what each waits for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from firetrain.topology.plan import Plan


class Message(NamedTuple):
    """The elements `start` to `end` of a buffer on their way from one rank to another.

    `tag` counts the messages from `source` to `target`; `transfer` is the plan's first transfer in it; messages of one `wave`
    can be under way together.
    """

    source: int
    target: int
    tag: int
    start: int
    end: int
    adds: bool
    transfer: int
    wave: int


class Receive(NamedTuple):
    """A receive, with this rank's earlier sends (places in `sends`) that must be out before these elements may change.

    `in_place`: a copy may land in the buffer itself as soon as it comes. It holds the complete sum, so this rank's share
    of it has been sent and has arrived; if that was its only send of it, nobody reads the buffer any more. `held`: in a
    plan that adds in rank order, an add from a lower rank is collected apart; `opens` and `closes` mark the first and the
    last of those.
    """

    message: Message
    after_sends: tuple[int, ...]
    in_place: bool
    held: bool = False
    opens: bool = False
    closes: bool = False


class Send(NamedTuple):
    """A send that may leave once the first `after` receives are done.

    `first_copy`: this rank made the sum that it sends, and is the first to send it.
    """

    message: Message
    after: int
    first_copy: bool


@dataclass(frozen=True)
class Program:
    """A rank's receives, and its sends, in the order in which they are dealt with."""

    rank: int
    receives: tuple[Receive, ...]
    sends: tuple[Send, ...]


def program(plan: Plan, rank: int, length: int, piece: int) -> Program:
    """The part of `rank` in `plan` for a buffer of `length` elements, in messages of about `piece` elements if pipelined.

    Pieces follow one another through the rounds: piece q of round r belongs to wave r + q, and a rank deals with its
    messages wave after wave. Transfers of one round between the same two ranks travel together where they adjoin; what is
    empty is skipped on both sides.

    Why nothing waits for itself, even if a rank sends its messages one after another and takes them in one after another:
    of all messages that have not arrived, take the first in the order of waves. All that its sender sends or takes in before
    it has arrived, and so has all that its receiver takes in before it: the one can send it, the other awaits it.
    """
    receives: list[Receive] = []
    sends: list[Send] = []
    received: dict[int, int] = {}  # by first element of a cell: receives so far, places of sends so far, is it a copy
    sent: dict[int, list[int]] = {}
    copied: set[int] = set()
    for message, cells in _messages(plan, rank, length, piece):
        if message.source == rank:
            first_copy = not message.adds and not any(cell in copied for cell in cells)
            after = max(sends[-1].after if sends else 0, *(received.get(cell, 0) for cell in cells))
            for cell in cells:
                sent.setdefault(cell, []).append(len(sends))
            sends.append(Send(message, after, first_copy))
        else:
            earlier = sorted({place for cell in cells for place in sent.get(cell, ())})
            in_place = not message.adds and all(len(sent.get(cell, ())) <= 1 for cell in cells)
            receives.append(Receive(message, tuple(earlier), in_place))
            received |= dict.fromkeys(cells, len(receives))
        if not message.adds:
            copied |= set(cells)
    return Program(rank, tuple(_in_rank_order(receives) if plan.rank_order else receives), tuple(sends))


def _messages(plan: Plan, rank: int, length: int, piece: int) -> Iterator[tuple[Message, list[int]]]:
    """The messages from and to `rank`, wave after wave, each with the first elements of its cells (pieces of chunks)."""
    longest = -(-length // plan.chunks)
    pieces = max(1, round(longest / piece)) if plan.pipelined else 1
    limit = max(piece, longest) if plan.pipelined else length
    rounds = plan.round_of
    mine = [
        (rounds[index] + number, number, index)
        for index, transfer in enumerate(plan.transfers)
        if rank in (transfer.source, transfer.target)
        for number in range(pieces)
    ]
    open_messages: list[tuple[Message, list[int]]] = []
    tags: dict[tuple[int, int], int] = {}
    wave = (-1, -1)
    for *place, index in sorted(mine):
        source, target, chunk, adds = plan.transfers[index]
        cell = chunk * pieces + place[1]
        start, end = cell * length // (plan.chunks * pieces), (cell + 1) * length // (plan.chunks * pieces)
        if start == end:
            continue
        if tuple(place) != wave:
            yield from open_messages
            open_messages, wave = [], (place[0], place[1])
        for number, (message, cells) in enumerate(open_messages):
            alike = message[:2] == (source, target) and message.adds == adds
            if alike and message.end == start and end - message.start <= limit:
                open_messages[number] = (message._replace(end=end), [*cells, start])
                break
        else:
            tag = tags[source, target] = tags.get((source, target), -1) + 1
            open_messages.append((Message(source, target, tag, start, end, adds, index, place[0]), [start]))
    yield from open_messages


def _in_rank_order(receives: Iterable[Receive]) -> Iterator[Receive]:
    """Adds from lower ranks are marked as held; those of one range follow one another, in the order of their ranks."""
    receives = list(receives)

    def lower(place: int) -> tuple[int, int] | None:
        if not 0 <= place < len(receives):
            return None
        message = receives[place].message
        return (message.start, message.end) if message.adds and message.source < message.target else None

    for place, receive in enumerate(receives):
        this = lower(place)
        if this is None:
            yield receive
        else:
            yield receive._replace(held=True, opens=lower(place - 1) != this, closes=lower(place + 1) != this)
