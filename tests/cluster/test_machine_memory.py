"""The memory of a machine, or of the container in which this is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from firetrain.cluster import memory
from firetrain.errors import UserError


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 9 GB, of which 2 GB are available, in no control group."""
    (tmp_path / "meminfo").write_text("MemTotal: 9000000 kB\nMemFree: 1000 kB\nMemAvailable:  2000000 kB\n")
    monkeypatch.setattr(memory, "_MACHINE", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_GROUPS", ())
    return tmp_path


def test_it_is_what_the_system_says() -> None:
    words = Path("/proc/meminfo").read_text().split()
    whole = 1024 * int(words[words.index("MemTotal:") + 1])
    found = memory.memory_bytes()
    assert found is not None and 0 < found < whole


def test_what_other_processes_hold_is_not_free(alone: Path) -> None:
    assert memory.memory_bytes() == 2_048_000_000
    memory.refuse_too_many_ranks(12)
    told = (
        r"13 ranks on this machine would use at least 2.1 GB of memory, and 2.0 GB are available: use at most 12 ranks"
    )
    with pytest.raises(UserError, match=told):
        memory.refuse_too_many_ranks(13)
    (alone / "meminfo").write_text("MemAvailable: 100000 kB\n")
    with pytest.raises(UserError, match=r"1 rank on this machine .*: end other processes, or --on slurm"):
        memory.refuse_too_many_ranks(1)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("1073741824\n", (1 << 30) - 500_000_000 + 100_000_000),
        ("max\n", None),
        ("9223372036854771712\n", None),
        ("1000\n", 0),
    ],
)
def test_what_is_left_of_a_container_s_limit_counts_where_it_has_one(
    text: str, left: int | None, alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (alone / "limit").write_text(text)
    (alone / "used").write_text("500000000\n")
    (alone / "memory.stat").write_text("anon 400000000\ninactive_file 100000000\n")
    groups = ((alone / "none", "used", "inactive_file"), (alone / "limit", "used", "inactive_file"))
    monkeypatch.setattr(memory, "_GROUPS", groups)
    assert memory.memory_bytes() == (2_048_000_000 if left is None else left)


def test_without_linux_all_memory_of_the_machine_counts(alone: Path) -> None:
    (alone / "meminfo").unlink()
    found = memory.memory_bytes()
    assert found is not None and found > 1 << 28


def test_nothing_is_refused_where_the_memory_is_unknown(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> int:
        raise ValueError(name)

    (alone / "meminfo").unlink()
    monkeypatch.setattr(memory.os, "sysconf", unknown)
    assert memory.memory_bytes() is None
    memory.refuse_too_many_ranks(1 << 20)
