"""The sizes of pieces and buckets that follow from the latency and the bandwidth of a link."""

from __future__ import annotations

import math
from itertools import product

import pytest

from firetrain.cluster import Link
from firetrain.cluster.link import largest_bytes


@pytest.mark.parametrize("chunk_bytes", [8 << 20, 27_000_000])
@pytest.mark.parametrize("rounds", [2, 6, 14])
def test_pieces_are_as_long_as_makes_the_pipeline_shortest(chunk_bytes: int, rounds: int) -> None:
    link = Link(500e-6, 1.2e8)

    def seconds(pieces: int) -> float:
        return (rounds - 1 + pieces) * (link.latency_s + chunk_bytes / pieces / link.bytes_per_s)

    best = min(map(seconds, range(1, 2000)))
    assert seconds(round(chunk_bytes / link.piece_bytes(chunk_bytes, rounds))) < 1.02 * best


def test_a_piece_takes_at_least_as_long_on_the_wire_as_its_message_costs_a_rank() -> None:
    for latency_s, bytes_per_s, overhead_s in product((0, 1e-5, 1e-3), (1e7, 1e9, 1e11), (0, 1e-5)):
        link = Link(latency_s, bytes_per_s, overhead_s)
        for chunk_bytes, rounds in product((1, 1 << 20, 1 << 30), (1, 2, 14)):
            piece = link.piece_bytes(chunk_bytes, rounds)
            assert 64 << 10 <= piece <= 4 << 20
            assert piece == 4 << 20 or piece >= math.floor(overhead_s * bytes_per_s)


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_a_bucket_s_all_reduce_spends_a_fifth_of_its_time_on_latency(ranks: int) -> None:
    link = Link(2e-3 / math.log2(ranks), 2.4e8)
    size = link.bucket_bytes(ranks)
    assert 1 << 20 < size < 4 << 20
    latency_s, transfer_s = 2 * math.log2(ranks) * link.latency_s, 2 * size / link.bytes_per_s
    assert latency_s / (latency_s + transfer_s) == pytest.approx(0.2, rel=1e-5)


def test_pieces_and_buckets_stay_within_their_bounds() -> None:
    assert Link(0.0, 1e12).piece_bytes(1 << 30, 2) == 64 << 10
    assert Link(1.0, 1e12).piece_bytes(1 << 30, 2) == 4 << 20
    assert Link(0.0, 1e9).bucket_bytes(2) == 1 << 20 and Link(1.0, 1e9).bucket_bytes(2) == 4 << 20
    assert 32 << 20 < Link(20e-6, 2e11, 0.0, largest_bytes("nccl")).bucket_bytes(8) < 64 << 20  # over NVLink
