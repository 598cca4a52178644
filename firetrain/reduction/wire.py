"""Numbers on the wire: as they are in the buffer, or rounded to 16 bits; they are added in the type of the buffer."""

from __future__ import annotations

import torch
from torch import Tensor

from firetrain.topology.program import Receive, Send

WIRE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Slots:
    """Scratch memory for messages in numbered slots, each of which grows to its longest message."""

    def __init__(self, device: torch.device) -> None:
        self._memory: dict[tuple[int, torch.dtype], Tensor] = {}
        self._device = device

    def take(self, number: int, length: int, dtype: torch.dtype) -> Tensor:
        """The first `length` elements of slot `number` of this type."""
        slot = number, dtype
        if slot not in self._memory or len(self._memory[slot]) < length:
            self._memory[slot] = torch.empty(length, dtype=dtype, device=self._device)
        return self._memory[slot][:length]


def type_on_wire(buffer: Tensor, wire_dtype: torch.dtype) -> torch.dtype:
    """The type in which numbers of `buffer` are sent: its own, unless they are to be rounded to 16 bits.

    >>> type_on_wire(torch.zeros(2, dtype=torch.float64), torch.float32)
    torch.float64
    """
    return buffer.dtype if wire_dtype == torch.float32 else wire_dtype


class Wire:
    """Conversion between a buffer and messages on the wire.

    A sum is rounded once, by the rank that computed it, before it is distributed; so all ranks get identical bits.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._is_short = dtype != torch.float32
        self._departures, self._landings, self._apart = Slots(device), Slots(device), Slots(device)

    def bytes(self, span: Tensor) -> int:
        """The number of bytes of `span` on the wire."""
        return len(span) * type_on_wire(span, self._dtype).itemsize

    def departure(self, number: int, span: Tensor) -> Tensor:
        """The memory from which `span` is sent: the buffer itself, or slot `number`, which is reusable after the send."""
        return self._departures.take(number, len(span), self._dtype) if self._is_short else span

    def depart(self, send: Send, span: Tensor, wire: Tensor) -> None:
        """Copy `span` of the buffer to the memory from which it is sent."""
        if self._is_short:
            wire.copy_(span)
            if send.first_copy:
                span.copy_(wire)  # replace the own value by the rounded one that the other ranks get

    def landing(self, number: int, receive: Receive, span: Tensor) -> Tensor:
        """The memory that receives a message for `span`: the buffer itself, or slot `number`."""
        if receive.in_place and not self._is_short:
            return span
        return self._landings.take(number, len(span), type_on_wire(span, self._dtype))

    def land(self, receive: Receive, span: Tensor, landed: Tensor) -> None:
        """Add or copy a received message to `span` of the buffer."""
        if not receive.message.adds:
            if self._is_short or not receive.in_place:
                span.copy_(landed)
        elif not receive.held:
            span.add_(landed)
        else:  # an add from a lower rank in a rank-order plan: accumulate separately before adding the rank's own content
            apart = self._apart.take(0, len(span), span.dtype)
            if receive.opens:
                apart.copy_(landed)
            else:
                apart.add_(landed)
            if receive.closes:
                span.add_(apart)
