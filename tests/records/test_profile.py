"""profile.json is written and read back, rejected if damaged, and used for the right world."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrain.cluster import Link
from firetrain.errors import CannotCreate, UserError
from firetrain.records.profile import (
    MeasuredLink,
    MeasuredStep,
    Profile,
    Quantity,
    Timing,
    TimingTable,
    shipped_profiles,
)

INSIDE, BETWEEN = "inside a node", "between nodes"


def link(
    level: str, pairs: str, latency_s: float = 1e-4, bytes_per_s: float = 1e8, transport: str = "gloo"
) -> MeasuredLink:
    return MeasuredLink(
        level=level, pairs=pairs, transport=transport, node_of=(0, 0, 1, 1), latency_s=latency_s, bytes_per_s=bytes_per_s,
        medians_s={4: latency_s, 1 << 20: latency_s + (1 << 20) / bytes_per_s}, count=9,
    )  # type: ignore[arg-type] # fmt: skip


def table(
    rows: dict[str, dict[int, float]], node_of: tuple[int, ...] = (0, 1), wire_dtype: str = "float32"
) -> TimingTable:
    timings = [
        Timing(reduction=name, bytes=size, median_s=s) for name, sizes in rows.items() for size, s in sizes.items()
    ]
    return TimingTable(transport="gloo", node_of=node_of, wire_dtype=wire_dtype, rows=tuple(timings))


def step(**changes: object) -> MeasuredStep:
    second = Quantity(value=0.1, low=0.09, high=0.12, count=20)
    return MeasuredStep.model_validate(
        {"model": "lenet", "image_size": 16, "batch_per_rank": 32, "device": "cpu", "forward_s": second, "backward_s": second,
         "update_s": second, "ready": ((4000, 0.5), (8000, 1.0)), **changes}
    )  # fmt: skip


def test_all_that_is_measured_comes_back_from_the_file(tmp_path: Path) -> None:
    machine = {"host": "fire1", "cores": 2}
    full = Profile(steps=(step(),), s_per_added_byte=Quantity(value=1e-10), ranks_per_node=2, notes=("by night",))
    full = full.with_links([link(INSIDE, "one"), link(BETWEEN, "all")], machine).with_table(
        table({"ring": {4: 1e-3}}), machine
    )
    full.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == full
    assert full.machines == (machine, machine) and full.steps[0].gradient_bytes == 12000


@given(st.floats(min_value=0, max_value=1e300), st.floats(min_value=5e-324, max_value=1e300))
def test_numbers_come_back_bit_for_bit(latency_s: float, bytes_per_s: float) -> None:
    profile = Profile().with_links([link(INSIDE, "one", latency_s, bytes_per_s)], {})
    profile.save(Path("profile.json"))
    (read,) = Profile.load(Path("profile.json")).links
    assert (read.latency_s, read.bytes_per_s) == (latency_s, bytes_per_s)


def test_a_place_that_cannot_be_written_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(CannotCreate, match="nowhere/profile.json: No such file"):
        Profile().save(tmp_path / "nowhere" / "profile.json")
    assert list(tmp_path.iterdir()) == []


def wrong() -> list[tuple[dict[str, object], str]]:
    """A change to a valid profile, and the expected message."""
    good = json.loads(Profile(links=(link(INSIDE, "one"),), steps=(step(),)).model_dump_json())
    return [
        ({"version": 2}, "version: Input should be 1"),
        ({"speed": 1}, "speed: Extra inputs"),
        ({"ranks_per_node": 0}, "ranks_per_node: Input should be greater than or equal to 1"),
        (
            {"links": [{**good["links"][0], "latency_s": -1}]},
            "links.0.latency_s: Input should be greater than or equal to 0",
        ),
        ({"links": [{**good["links"][0], "bytes_per_s": 0}]}, "links.0.bytes_per_s: Input should be greater than 0"),
        ({"links": [{**good["links"][0], "level": "between racks"}]}, "links.0.level: Input should be 'inside a node'"),
        ({"links": [{**good["links"][0], "spread": 1.5}]}, "links.0.spread: Input should be less than or equal to 1"),
        ({"steps": [{**good["steps"][0], "batch_per_rank": 0}]}, "steps.0.batch_per_rank"),
        ({"steps": [{**good["steps"][0], "ready": [[-1, 0.5]]}]}, "steps.0.ready.0.0"),
        ({"steps": [{**good["steps"][0], "forward_s": {}}]}, "steps.0.forward_s.value: Field required"),
    ]


@pytest.mark.parametrize(("change", "told"), wrong(), ids=[told for _, told in wrong()])
def test_what_is_wrong_with_a_profile_is_told_by_its_place(
    tmp_path: Path, change: dict[str, object], told: str
) -> None:
    good = json.loads(Profile(links=(link(INSIDE, "one"),), steps=(step(),)).model_dump_json())
    (tmp_path / "profile.json").write_text(json.dumps({**good, **change}))
    with pytest.raises(UserError) as error:
        Profile.load(tmp_path / "profile.json")
    assert "profile.json is not a profile" in str(error.value) and told in str(error.value)


def test_all_faults_of_a_profile_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text('{"version": 3, "links": [{}], "colour": "red"}')
    with pytest.raises(UserError) as error:
        Profile.load(tmp_path / "profile.json")
    assert all(place in str(error.value) for place in ("version", "links.0.level", "links.0.bytes_per_s", "colour"))


@pytest.mark.parametrize("text", ["", "{", "[]", "NaN", "\x00"])
def test_text_that_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "profile.json").write_text(text)
    with pytest.raises(UserError, match="is not a profile"):
        Profile.load(tmp_path / "profile.json")


def test_an_unknown_name_lists_the_shipped_profiles_and_how_a_file_is_given() -> None:
    with pytest.raises(UserError, match=r"unknown profile 'titan', did you mean titan-k20\? .*\./profile\.json"):
        Profile.find("titan")


def test_what_is_given_as_a_path_is_read_as_a_file_whatever_its_ending(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "deep.yaml").write_text("[" * 100)
    for name, told in (
        ("pipe.yaml", "pipe.yaml is not a regular file"),
        ("deep.yaml", "deep.yaml is not a profile"),
        ("none.yaml", "none.yaml: cannot be read: No such file"),
    ):
        with pytest.raises(UserError, match=told):
            Profile.find(str(tmp_path / name))


@pytest.mark.parametrize("name", sorted(shipped_profiles()))
def test_what_is_shipped_can_be_read(name: str) -> None:
    profile = Profile.find(name)
    assert profile.links and profile.steps and profile.notes


def test_new_links_take_the_place_of_the_same_links_only() -> None:
    before = Profile().with_links(
        [link(INSIDE, "one"), link(BETWEEN, "one"), link(BETWEEN, "one", transport="nccl")], {}
    )
    after = before.with_links([link(BETWEEN, "one", latency_s=5e-4)], {})
    kept = {(one.level, one.transport): one.latency_s for one in after.links}
    assert kept == {(INSIDE, "gloo"): 1e-4, (BETWEEN, "gloo"): 5e-4, (BETWEEN, "nccl"): 1e-4}


def test_a_new_table_takes_the_place_of_the_same_sizes_in_the_same_world() -> None:
    before = (
        Profile().with_table(table({"ring": {4: 1.0, 8: 1.0}}), {}).with_table(table({"ring": {4: 2.0}}, (0, 0)), {})
    )
    after = before.with_table(table({"tree": {8: 3.0}}), {})
    rows = after.table("gloo", (0, 1), "float32")
    assert rows and {(row.reduction, row.bytes): row.median_s for row in rows.rows} == {
        ("ring", 4): 1.0,
        ("tree", 8): 3.0,
    }
    assert after.table("gloo", (0, 0), "float32") == before.table("gloo", (0, 0), "float32")
    assert after.table("gloo", (0, 1), "float16") is None and after.table("nccl", (0, 1), "float32") is None


def test_the_fastest_reduction_is_that_of_the_nearest_sizes() -> None:
    """Two lines on logarithmic axes that cross at 64 KiB."""
    times = table({"tree": {1 << 12: 1e-4, 1 << 20: 1.6e-3}, "ring": {1 << 12: 4e-4, 1 << 20: 4e-4}})
    assert [times.fastest(1 << size) for size in (2, 12, 15, 17, 20, 28)] == ["tree"] * 3 + ["ring"] * 3
    assert times.fastest(4, among=["ring"]) == "ring"


def test_a_reduction_timed_at_one_size_is_taken_to_be_that_fast_everywhere() -> None:
    times = table({"ring": {1 << 20: 1e-3}, "tree": {1 << 12: 1e-4, 1 << 20: 2e-3}})
    assert times.fastest(1 << 12) == "tree" and times.fastest(1 << 20) == "ring"


def test_the_slowest_link_is_told_with_the_latency_of_a_pair_alone() -> None:
    profile = Profile().with_links(
        [link(INSIDE, "one", 1e-5, 4e9), link(INSIDE, "all", 3e-5, 2e9), link(BETWEEN, "one", 1e-4, 1e9),
         link(BETWEEN, "all", 5e-4, 1e8)], {},
    )  # fmt: skip
    assert profile.slowest_link("gloo") == Link(1e-4, 1e8, 5e-4)
    assert profile.slowest_link("nccl") is None


@pytest.mark.parametrize("pairs", ["one", "all"])
def test_half_measured_links_are_not_used(pairs: str) -> None:
    assert Profile().with_links([link(BETWEEN, pairs)], {}).slowest_link("gloo") is None
