"""Ranks of a user's own script that have lost another one tell the launcher, whose records are of ranks or of agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from firetrain.records.lost_peer import forget_lost_peer, has_lost_peer, mark_lost_peer, told_of_lost_peer


def test_a_rank_that_has_lost_a_peer_is_marked_until_it_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRETRAIN_ATTEMPT", str(tmp_path))
    monkeypatch.setenv("RANK", "3")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert not has_lost_peer(tmp_path, 3)
    mark_lost_peer("rank 0 lost rank 1")
    assert has_lost_peer(tmp_path, 3) and not has_lost_peer(tmp_path, 2)
    assert [told_of_lost_peer(tmp_path, rank) for rank in (3, 2)] == ["rank 0 lost rank 1", ""]
    forget_lost_peer(tmp_path, 3)
    assert not has_lost_peer(tmp_path, 3)


def test_an_agent_of_torchrun_has_lost_a_peer_when_all_of_its_ranks_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1, on the first of two nodes, fails; all others lose it."""
    variables = {"FIRETRAIN_ATTEMPT": str(tmp_path), "TORCHELASTIC_RUN_ID": "7", "LOCAL_WORLD_SIZE": "2"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for rank, agent in ((0, 0), (2, 1), (3, 1)):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(rank % 2))
        monkeypatch.setenv("SLURM_PROCID", str(agent))
        mark_lost_peer("rank 0 lost rank 1")
    assert [has_lost_peer(tmp_path, agent) for agent in range(4)] == [False, True, False, False]
