"""Auto chooses the fastest measured reduction, the same on every rank, and reports its choice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import on_ranks

from firetrain.records.profile import Profile, Timing, TimingTable
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.context import Context
from firetrain.reduction.interface import Bucket
from firetrain.transport.transport import Transport


def table(node_of: tuple[int, ...], **seconds: tuple[float, float]) -> Profile:
    """A table of times at 4 KB and 4 MB."""
    rows = [
        Timing(reduction=name.replace("_", "-"), bytes=size, median_s=time)
        for name, times in seconds.items()
        for size, time in zip((4000, 4_000_000), times, strict=True)
    ]
    return Profile(tables=(TimingTable(transport="gloo", node_of=node_of, wire_dtype="float32", rows=tuple(rows)),))


def choose(transport: Transport, profile: Profile | None, candidates: str) -> dict[str, Any]:
    spec = f"auto:candidates={candidates}" if candidates else "auto"
    # only rank 0 has read a profile; the others must follow it
    reduction = find_reduction(spec, Context(transport, profile=profile if transport.rank == 0 else None))
    buckets = [Bucket(torch.ones(length)) for length in (1000, 1_000_000, 50_000)]
    reduction.prepare(buckets)
    for pending in [reduction.start(bucket) for bucket in buckets]:
        pending.wait()
    assert all(torch.equal(bucket.buffer, torch.full_like(bucket.buffer, transport.size)) for bucket in buckets)
    facts = reduction.facts()
    reduction.close()
    return facts


def test_the_profile_of_this_world_decides_by_size() -> None:
    profile = table((0, 0, 1), tree=(0.001, 0.4), ring=(0.004, 0.05), native=(0.007, 0.06))
    first, *others = on_ranks(3, choose, profile, "", nodes=2)
    assert first == {"chosen": {"4000": "tree", "200000": "ring", "4000000": "ring"}, "from": "the profile's table"}
    assert all(other["chosen"] == first["chosen"] for other in others)


def test_only_candidates_are_taken_from_it() -> None:
    profile = table((0, 0, 1), tree=(0.001, 0.4), ring=(0.004, 0.05), native=(0.007, 0.06))
    first = on_ranks(3, choose, profile, "ring+native", nodes=2)[0]
    assert set(first["chosen"].values()) == {"ring"}


def test_without_a_table_for_this_world_it_measures() -> None:
    profile = table((0, 1, 2, 3), tree=(0.001, 0.4))
    first, *others = on_ranks(3, choose, profile, "tree+ring+native", nodes=2)
    assert first["from"] == "a measurement before the first step"
    assert set(first["chosen"]) == {"4000", "200000", "4000000"}
    assert all(other["chosen"] == first["chosen"] for other in others)


def test_between_measured_sizes_a_line_on_logarithmic_axes_decides() -> None:
    only = table((0,), fast_start=(0.001, 1.0), fast_end=(0.010, 0.1)).tables[0]
    # 0.001 * r and 0.010 * r^(1/3) with r = n / 4000 cross at r = 10^1.5
    assert only.fastest(4000 * 30) == "fast-start" and only.fastest(4000 * 33) == "fast-end"
    assert only.fastest(40) == "fast-start" and only.fastest(40_000_000) == "fast-end"


@pytest.mark.parametrize("candidates", ["tree+rings", "auto+ring"])
def test_a_wrong_candidate_is_refused(candidates: str) -> None:
    with pytest.raises(AssertionError, match=r"UserError: .*(unknown topology 'rings'|auto cannot be)"):
        on_ranks(2, choose, None, candidates)
