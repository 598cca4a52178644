"""The part of one rank in a plan for a buffer: its messages, and the messages that each of them waits for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from firetrain.topology.plan import Plan


class Message(NamedTuple):
    """A message with the elements from `start` up to `end` of a buffer.

    - `tag`: number of the message among those from `source` to `target`, from 0.
    - `adds`: the target adds the elements, instead of overwriting its own.
    - `transfer`: index of the plan's first transfer in the message.
    - `wave`: messages of the same wave can be under way together.
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
    """A message that a rank receives.

    - `after_sends`: earlier sends of this rank (indices in `sends`) that must be complete before these elements may change.
    - `in_place`: a copy may be received into the buffer itself. A copy contains the complete sum, so this rank's contribution
      has been sent and has arrived; if that was the rank's only send of it, nothing reads the buffer any more.
    - `held`: (rank-order plans) the add goes to a separate accumulator.
    - `opens`, `closes`: first and last add into the accumulator.
    """

    message: Message
    after_sends: tuple[int, ...]
    in_place: bool
    held: bool = False
    opens: bool = False
    closes: bool = False


class Send(NamedTuple):
    """A message that a rank sends.

    - `after`: number of receives that must be complete before.
    - `first_copy`: this rank computed the sum that it sends, and is the first to send it.
    """

    message: Message
    after: int
    first_copy: bool


@dataclass(frozen=True)
class Program:
    """The receives and the sends of a rank, each in the order in which the rank processes them."""

    rank: int
    receives: tuple[Receive, ...]
    sends: tuple[Send, ...]


def program(plan: Plan, rank: int, length: int, piece: int, align: int = 1) -> Program:
    """The part of `rank` in `plan` for a buffer of `length` elements, in messages of about `piece` elements if pipelined.

    Pieces pass through the rounds one after another: piece q of round r belongs to wave r + q, and a rank processes its
    messages wave by wave. Adjacent transfers of one round between the same two ranks are merged into one message; empty
    transfers are skipped on both sides. Messages begin at multiples of `align` elements.

    Deadlock freedom, even if a rank sends its messages one after another and receives them one after another: take the first
    undelivered message in wave order. All earlier sends and receives of its sender, and all earlier receives of its receiver,
    are complete. So it can be sent and received.
    """
    receives: list[Receive] = []
    sends: list[Send] = []
    # by the first element of a cell: the number of receives so far, the numbers of the sends so far, and whether it is a copy
    received: dict[int, int] = {}
    sent: dict[int, list[int]] = {}
    copied: set[int] = set()
    for message, cells in _messages(plan, rank, length, piece, align):
        if message.source == rank:
            first_copy = not message.adds and not any(cell in copied for cell in cells)
            after = max(sends[-1].after if sends else 0, *(received.get(cell, 0) for cell in cells))
            for cell in cells:
                sent.setdefault(cell, []).append(len(sends))
            sends.append(Send(message, after, first_copy))
        else:
            earlier = sorted({send for cell in cells for send in sent.get(cell, ())})
            in_place = not message.adds and all(len(sent.get(cell, ())) <= 1 for cell in cells)
            receives.append(Receive(message, tuple(earlier), in_place))
            received |= dict.fromkeys(cells, len(receives))
        if not message.adds:
            copied |= set(cells)
    return Program(rank, tuple(_in_rank_order(receives) if plan.rank_order else receives), tuple(sends))


def _messages(plan: Plan, rank: int, length: int, piece: int, align: int) -> Iterator[tuple[Message, list[int]]]:
    """The messages from and to `rank`, wave by wave, each with the first elements of its cells (pieces of chunks)."""
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
    for round_number, piece, index in sorted(mine):
        source, target, chunk, adds = plan.transfers[index]
        cell, cells_of_all = chunk * pieces + piece, plan.chunks * pieces
        start, end = (_edge(number, cells_of_all, length, align) for number in (cell, cell + 1))
        if start == end:
            continue
        if (round_number, piece) != wave:
            yield from open_messages
            open_messages, wave = [], (round_number, piece)
        for number, (message, cells) in enumerate(open_messages):
            alike = message[:2] == (source, target) and message.adds == adds
            if alike and message.end == start and end - message.start <= limit:
                open_messages[number] = (message._replace(end=end), [*cells, start])
                break
        else:
            tag = tags[source, target] = tags.get((source, target), -1) + 1
            open_messages.append((Message(source, target, tag, start, end, adds, index, round_number), [start]))
    yield from open_messages


def _edge(cell: int, cells: int, length: int, align: int) -> int:
    """The first element of a cell, rounded down to a multiple of `align`; the end of the buffer behind the last cell."""
    return length if cell == cells else cell * length // cells // align * align


def _in_rank_order(receives: Iterable[Receive]) -> Iterator[Receive]:
    """Mark adds from lower ranks as held; those into the same elements are consecutive, in rank order."""
    receives = list(receives)

    def lower(index: int) -> tuple[int, int] | None:
        if not 0 <= index < len(receives):
            return None
        message = receives[index].message
        return (message.start, message.end) if message.adds and message.source < message.target else None

    for index, receive in enumerate(receives):
        this = lower(index)
        if this is None:
            yield receive
        else:
            yield receive._replace(held=True, opens=lower(index - 1) != this, closes=lower(index + 1) != this)
