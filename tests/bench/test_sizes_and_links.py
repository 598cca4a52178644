"""Sizes are parsed; a line is fitted to measurements of links; a profile is saved and read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from firetrain.bench.link import fit
from firetrain.bench.sizes import parse_sizes, tell_size
from firetrain.cluster import Link
from firetrain.errors import UserError
from firetrain.records.profile import MeasuredLink, Profile, Timing, TimingTable


def test_sizes_and_ranges() -> None:
    assert parse_sizes("4, 64KiB,27MB") == [4, 65536, 27_000_000]
    assert parse_sizes("4KiB:1MiB") == [4096 * 4**k for k in range(5)]
    assert parse_sizes("4KiB:5KiB,1gib") == [4096, 1 << 30]
    assert [tell_size(size) for size in (65536, 27_000_000, 4100)] == ["64 KiB", "27 MB", "4100 B"]


@pytest.mark.parametrize("text", ["", "many", "64 Kilo", "-4", "2", "7", "4KiB:", "64MiB:4KiB"])
def test_sizes_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="size"):
        parse_sizes(text)


def test_the_fit_finds_the_line_it_was_made_from() -> None:
    for latency_s, bytes_per_s in ((50e-6, 1e9), (2e-6, 20e9), (0.0, 1e8)):
        medians = {size: latency_s + size / bytes_per_s for size in (8, 1024, 65536, 1 << 20, 1 << 24)}
        assert fit(medians) == pytest.approx((latency_s, bytes_per_s), rel=1e-6, abs=1e-12)


def test_streamed_messages_do_not_count_as_waiting() -> None:
    medians = {8: 1e-3, 1024: 1e-3 + 1e-5, 1 << 20: (1 << 20) / 1e8, 1 << 22: (1 << 22) / 1e8}
    latency_s, bytes_per_s = fit(medians, streamed_from=65537)
    assert latency_s == pytest.approx(1e-3, rel=0.01) and bytes_per_s == pytest.approx(1e8, rel=0.01)


def test_latency_is_never_negative_and_a_link_that_costs_nothing_is_no_division_by_zero() -> None:
    # a traffic shaper's burst: small messages are faster than the line fitted to the large ones
    latency_s, bytes_per_s = fit({8: 1e-6, 1 << 16: 1e-6, 1 << 24: 0.17})
    assert latency_s >= 0 and bytes_per_s > 0
    assert fit({8: 1e-5, 1 << 20: 1e-5, 1 << 21: 1e-5})[1] > 1e12


def link(level: str, pairs: str, bytes_per_s: float, latency_s: float = 1e-4) -> MeasuredLink:
    return MeasuredLink(
        level=level, pairs=pairs, transport="gloo", node_of=(0, 1), latency_s=latency_s, bytes_per_s=bytes_per_s,
        medians_s={8: 1e-4}, count=3,
    )  # type: ignore[arg-type] # fmt: skip


def test_a_profile_is_read_back_and_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    table = TimingTable(
        transport="gloo", node_of=(0, 1), wire_dtype="float32", rows=(Timing(reduction="ring", bytes=8, median_s=1e-3),)
    )
    links = [link(level, "one", 2e9) for level in ("inside a node", "between nodes")]
    links += [link("inside a node", "all", 9e8), link("between nodes", "all", 1e8, latency_s=1e-2)]
    Profile().with_links(links, {"host": "a"}).with_table(table, {"host": "a"}).save(path)
    profile = Profile.load(path)
    assert profile.slowest_link("gloo") == Link(1e-4, 1e8, 1e-2) and profile.slowest_link("nccl") is None
    assert profile.table("gloo", (0, 1), "float32") == table and profile.table("gloo", (0, 0), "float32") is None
    again = table.model_copy(
        update={"rows": (Timing(reduction="tree", bytes=8, median_s=1), Timing(reduction="ring", bytes=16, median_s=2))}
    )
    both = profile.with_table(table.model_copy(update={"rows": (again.rows[1],)}), {}).table("gloo", (0, 1), "float32")
    assert both and {(row.reduction, row.bytes) for row in both.rows} == {("ring", 8), ("ring", 16)}
    replaced = profile.with_table(again, {}).table("gloo", (0, 1), "float32")
    assert replaced and {(row.reduction, row.bytes) for row in replaced.rows} == {("tree", 8), ("ring", 16)}
    newer = profile.with_links([link("between nodes", "all", 3e8)], {"host": "b"})
    assert len(newer.links) == 4 and newer.slowest_link("gloo") == Link(1e-4, 3e8, 1e-4)


@pytest.mark.parametrize("text", ["", "{}x", '{"links": 3}', '{"version": 2}', '{"unknown": 1}'])
def test_what_is_not_a_profile_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(UserError, match="is not a profile"):
        Profile.load(path)
    with pytest.raises(UserError, match="cannot read the profile"):
        Profile.load(tmp_path / "none.json")
