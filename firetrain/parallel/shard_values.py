"""Values that the weights of whole tensors share, of which this rank holds shards (`model.keep: values`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from firetrain.optim.kept_weights import MOST_VALUES, few_values
from firetrain.transport.transport import Transport


class ShardValues:
    """Sums over all ranks what their shards have of each value; see `firetrain.optim.kept_weights.Values`.

    A shard that several ranks hold counts once in total. All ranks must make the same calls, also with no parameters.

    - `indices`: element of each parameter's whole tensor, by the parameter's id; the same on all ranks.
    - `sharers`: number of ranks that hold this shard, by the parameter's id.
    - `count`: number of whole tensors.
    """

    def __init__(
        self, transport: Transport, indices: Mapping[int, int], sharers: Mapping[int, int], count: int
    ) -> None:
        self._transport, self._indices, self._sharers, self._count = transport, indices, sharers, count

    def distinct(self, parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
        """The values of each parameter's whole tensor, sorted, or None if there are more than MOST_VALUES."""
        own = [(self._indices[id(one)], few_values(one)) for one in parameters]
        held: dict[int, set[float]] = {}
        many: set[int] = set()
        for shards in self._transport.gather_objects([(at, None if few is None else few.tolist()) for at, few in own]):
            for at, few in shards:
                held.setdefault(at, set()).update(few or ())
                many |= {at} if few is None or len(held[at]) > MOST_VALUES else set()
        return [
            None if at in many else torch.tensor(sorted(held[at]), dtype=one.dtype, device=one.device)
            for one, (at, _) in zip(parameters, own, strict=True)
        ]

    def total(self, parameters: Sequence[nn.Parameter], parts: Sequence[Tensor]) -> list[Tensor]:
        """For each parameter, what all shards of its tensor have together: float64, with an element for each value."""
        whole = torch.zeros(self._count, MOST_VALUES, dtype=torch.float64, device=self._transport.device)
        for one, part in zip(parameters, parts, strict=True):
            whole[self._indices[id(one)], : len(part)] = part / self._sharers[id(one)]
        self._transport.sum(whole)
        return [whole[self._indices[id(one)], : len(part)] for one, part in zip(parameters, parts, strict=True)]
