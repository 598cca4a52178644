"""Running statistics are those of all ranks, whichever of them have computed a norm."""

from __future__ import annotations

from ranks import on_ranks
from torch import nn

from firetrain.parallel.batch_norm import share_batch_norm
from firetrain.transport.transport import Transport


def shared(transport: Transport, computing: tuple[int, ...] | None) -> list[list[float]]:
    """[mean, variance, batches] of an instance norm and of a batch norm that rank r has trained with r + 1 batches of r."""
    model = nn.Sequential(
        nn.InstanceNorm2d(1, track_running_stats=True, momentum=0.5), nn.BatchNorm2d(1, momentum=None)
    )
    for norm in model:
        if computing is None or transport.rank in computing:
            norm.running_mean.fill_(float(transport.rank))  # type: ignore[operator, union-attr]
            norm.num_batches_tracked.fill_(transport.rank + 1)  # type: ignore[operator, union-attr]
    share_batch_norm(model, transport, None if computing is None else lambda name: computing)
    return [[float(buffer) for _, buffer in norm.named_buffers()] for norm in model]


def test_they_are_averaged_over_all_ranks() -> None:
    for rank, one in enumerate(on_ranks(3, shared, None)):
        assert one == [[1.0, 1.0, rank + 1]] * 2


def test_ranks_without_a_norm_get_its_mean_and_its_number_of_batches() -> None:
    assert on_ranks(4, shared, (1, 3)) == [[[2.0, 1.0, 4.0]] * 2] * 4
