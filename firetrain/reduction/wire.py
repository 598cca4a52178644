"""How numbers travel: as float32, or rounded to half the bytes; sums are float32 in either case."""

from __future__ import annotations

import torch
from torch import Tensor

from firetrain.topology.program import Receive, Send

WIRE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def bytes_of(numbers: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return memoryview(numbers.view(torch.uint8).numpy())  # type: ignore[arg-type]  # numpy's arrays are buffers


class Slots:
    """Scratch memory for messages, by number; grown to what the longest has needed and kept."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._memory: dict[int, Tensor] = {}
        self._dtype, self._device = dtype, device

    def take(self, number: int, length: int) -> Tensor:
        """`length` elements of slot `number`."""
        if number not in self._memory or len(self._memory[number]) < length:
            self._memory[number] = torch.empty(length, dtype=self._dtype, device=self._device)
        return self._memory[number][:length]


class Wire:
    """One rank's side of the wire: what a message holds when it leaves, and where it goes when it has come.

    A sum is rounded once, by the rank that made it, before it is spread, so that all ranks end with the same bits.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.rounds = dtype != torch.float32
        self._departures = Slots(dtype, device)
        self._landings = Slots(dtype, device)
        self._apart = Slots(torch.float32, device)

    def bytes(self, part: Tensor) -> int:
        """What `part` weighs on the wire."""
        return len(part) * self.dtype.itemsize

    def departure(self, number: int, part: Tensor) -> Tensor:
        """Where `part` of the buffer is sent from: there, or from slot `number`, which is free again once it is out."""
        return self._departures.take(number, len(part)) if self.rounds else part

    def depart(self, send: Send, part: Tensor, wire: Tensor) -> None:
        """Put what there is in `part` of the buffer where it is sent from."""
        if self.rounds:
            wire.copy_(part)
            if send.first_copy:
                part.copy_(wire)  # what the others will hold

    def landing(self, number: int, receive: Receive, part: Tensor) -> Tensor:
        """Where to receive what is meant for `part` of the buffer: there, or in slot `number`."""
        return part if receive.in_place and not self.rounds else self._landings.take(number, len(part))

    def land(self, receive: Receive, part: Tensor, landed: Tensor) -> None:
        """Put what has come into `part` of the buffer."""
        if not receive.message.adds:
            if self.rounds or not receive.in_place:
                part.copy_(landed)
        elif not receive.held:
            part.add_(landed)
        else:  # from a lower rank, in a plan that adds in rank order: apart first, then this rank's own comes to it
            apart = self._apart.take(0, len(part))
            if receive.opens:
                apart.copy_(landed)
            else:
                apart.add_(landed)
            if receive.closes:
                part.add_(apart)
