"""Norms of whole tensors of which this rank holds a shard, for optimisers that need them (LARS, LAMB)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from firetrain.transport.transport import Transport


class ShardNorms:
    """Sums the squares of shards over all ranks: one float64 vector, with an element per tensor.

    Optimisers call it with the parameters and, for each, a tensor of its shape. A shard that several ranks hold counts once in
    total. All ranks must make equally many calls; a rank with fewer makes the missing ones in `end`.

    - `indices`: element of each parameter's whole tensor, by the parameter's id; the same on all ranks.
    - `sharers`: number of ranks that hold this shard, by the parameter's id.
    - `count`: number of whole tensors. `calls`: calls of each rank in a step.
    """

    def __init__(
        self, transport: Transport, indices: Mapping[int, int], sharers: Mapping[int, int], count: int, calls: int
    ) -> None:
        self._transport, self._indices, self._sharers = transport, indices, sharers
        self._count, self._calls, self._made = count, calls, 0
        # by the parameters of a call, because making them makes the host wait for a GPU
        self._known: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def __call__(self, parameters: Sequence[Tensor], tensors: Sequence[Tensor]) -> Tensor:
        """The norm of each whole tensor, in the tensors' type, in the order of `parameters`."""
        self._made += 1
        squares = torch.zeros(self._count, dtype=torch.float64, device=self._transport.device)
        if tensors:
            where, shares = self._of(parameters)
            norms = torch.stack([tensor.double().square().sum() for tensor in tensors])
            squares.index_copy_(0, where, norms / shares)
        self._transport.sum(squares)
        return squares[where].sqrt().to(tensors[0].dtype) if tensors else squares[:0]

    def _of(self, parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The elements of the parameters' tensors, and the numbers of ranks that hold these shards, on the device."""
        key = tuple(map(id, parameters))
        if key not in self._known:
            indices, sharers = [self._indices[one] for one in key], [float(self._sharers[one]) for one in key]
            device = self._transport.device
            self._known[key] = (
                torch.tensor(indices, device=device),
                torch.tensor(sharers, dtype=torch.float64, device=device),
            )
        return self._known[key]

    def end(self) -> None:
        """End a step: make the calls that the other ranks have made and this one has not."""
        while self._made < self._calls:
            self((), ())
        self._made = 0
