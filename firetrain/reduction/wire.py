"""Numbers on the wire: float32, or rounded to 16 bits; sums are in float32 in both cases."""

from __future__ import annotations

import torch
from torch import Tensor

from firetrain.topology.program import Receive, Send

WIRE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Slots:
    """Scratch memory for messages in numbered slots, each of which grows to its longest message."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._memory: dict[int, Tensor] = {}
        self._dtype, self._device = dtype, device

    def take(self, number: int, length: int) -> Tensor:
        """The first `length` elements of slot `number`."""
        if number not in self._memory or len(self._memory[number]) < length:
            self._memory[number] = torch.empty(length, dtype=self._dtype, device=self._device)
        return self._memory[number][:length]


class Wire:
    """Conversion between a buffer and messages on the wire.

    A sum is rounded once, by the rank that computed it, before it is distributed; so all ranks get identical bits.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.is_short = dtype != torch.float32
        self._departures = Slots(dtype, device)
        self._landings = Slots(dtype, device)
        self._apart = Slots(torch.float32, device)

    def bytes(self, span: Tensor) -> int:
        """The number of bytes of `span` on the wire."""
        return len(span) * self.dtype.itemsize

    def departure(self, number: int, span: Tensor) -> Tensor:
        """The memory from which `span` is sent: the buffer itself, or slot `number`, which is reusable after the send."""
        return self._departures.take(number, len(span)) if self.is_short else span

    def depart(self, send: Send, span: Tensor, wire: Tensor) -> None:
        """Copy `span` of the buffer to the memory from which it is sent."""
        if self.is_short:
            wire.copy_(span)
            if send.first_copy:
                span.copy_(wire)  # replace the own value by the rounded one that the other ranks get

    def landing(self, number: int, receive: Receive, span: Tensor) -> Tensor:
        """The memory that receives a message for `span`: the buffer itself, or slot `number`."""
        return span if receive.in_place and not self.is_short else self._landings.take(number, len(span))

    def land(self, receive: Receive, span: Tensor, landed: Tensor) -> None:
        """Add or copy a received message to `span` of the buffer."""
        if not receive.message.adds:
            if self.is_short or not receive.in_place:
                span.copy_(landed)
        elif not receive.held:
            span.add_(landed)
        else:  # an add from a lower rank in a rank-order plan: accumulate separately before adding the rank's own content
            apart = self._apart.take(0, len(span))
            if receive.opens:
                apart.copy_(landed)
            else:
                apart.add_(landed)
            if receive.closes:
                span.add_(apart)
