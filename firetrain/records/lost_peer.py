"""The mark of a rank of a user's own script that has lost another one: its exit code is that of any exception."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from firetrain.records.script_steps import ATTEMPT


def mark_lost_peer(told: str) -> None:
    """Tell the launcher, if there is one, that this rank ends because another one has, and what it says about it."""
    attempt, rank = os.environ.get(ATTEMPT), os.environ.get("RANK", "")
    if not attempt or not rank.isdecimal():
        return
    with suppress(OSError):  # the rank is named wrongly at worst
        path = _path(Path(attempt), int(rank))
        path.parent.mkdir(exist_ok=True)
        if "TORCHELASTIC_RUN_ID" in os.environ:
            _mark_agent(Path(attempt))
        else:
            path.write_text(told, encoding="utf-8")


def _mark_agent(attempt: Path) -> None:
    """Mark torchrun's agent when all of its ranks have lost a peer: the job's records are those of the agents.

    An agent ends its other ranks when one has ended. One that is ended before it has noticed is not told apart from one that
    failed itself.
    """
    agent = os.environ.get("SLURM_PROCID", "")
    if agent.isdecimal():
        start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        folder = _path(attempt, int(agent)).with_suffix(f".ranks-{start}")
        folder.mkdir(exist_ok=True)
        (folder / os.environ["LOCAL_RANK"]).touch()
        if len(list(folder.iterdir())) >= int(os.environ["LOCAL_WORLD_SIZE"]):
            _path(attempt, int(agent)).touch()


def has_lost_peer(attempt: Path, rank: int) -> bool:
    """Whether a rank of an attempt has told so."""
    return _path(attempt, rank).exists()


def told_of_lost_peer(attempt: Path, rank: int) -> str:
    """What a rank of an attempt has said; empty if it has said nothing."""
    try:
        return _path(attempt, rank).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def forget_lost_peer(attempt: Path, rank: int) -> None:
    """Remove what a rank has told, before it is started again."""
    _path(attempt, rank).unlink(missing_ok=True)


def _path(attempt: Path, rank: int) -> Path:
    return attempt / "ranks" / f"{rank:04d}.lost"
