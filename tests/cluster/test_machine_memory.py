"""The memory of a machine, or of the container in which this is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from firetrain.cluster import memory


def test_it_is_what_the_system_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = Path("/proc/meminfo").read_text().split()
    whole = 1024 * int(words[words.index("MemTotal:") + 1])
    found = memory.memory_bytes()
    assert found is not None and 0 < found < whole
    (tmp_path / "meminfo").write_text("MemTotal: 9000000 kB\nMemFree: 1000 kB\nMemAvailable:  2000000 kB\n")
    monkeypatch.setattr(memory, "_OF_THE_MACHINE", tmp_path / "meminfo")
    assert memory.memory_bytes() == min(found, 2_048_000_000), "what other processes hold is not free"


@pytest.mark.parametrize(
    ("text", "limited"), [("1073741824\n", True), ("max\n", False), ("9223372036854771712\n", False)]
)
def test_the_limit_of_a_container_counts_where_it_has_one(
    text: str, limited: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_LIMITS", (tmp_path / "none", tmp_path / "none"))
    (tmp_path / "meminfo").write_text("MemAvailable: 2000000 kB\n")
    monkeypatch.setattr(memory, "_OF_THE_MACHINE", tmp_path / "meminfo")
    whole = memory.memory_bytes()
    (tmp_path / "limit").write_text(text)
    monkeypatch.setattr(memory, "_LIMITS", (tmp_path / "none", tmp_path / "limit"))
    assert memory.memory_bytes() == (1 << 30 if limited else whole)


def test_nothing_is_refused_where_the_memory_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_OF_THE_MACHINE", tmp_path / "none")
    assert memory.memory_bytes() is None
    memory.refuse_too_many_ranks(1 << 20)
