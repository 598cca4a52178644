"""Ranks that have the same GPU are refused in words, on all ranks alike, before NCCL starts."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import HashStore

from firetrain.cluster import Identity
from firetrain.errors import UserError
from firetrain.transport import rendezvous
from firetrain.transport.shared_gpus import refuse_shared_gpus


def told(uuids: Sequence[str]) -> list[str]:
    """What each rank is told if the ranks have these GPUs; empty if it is not refused."""
    store, everyone = HashStore(), threading.Barrier(len(uuids))

    def rank(number: int) -> str:
        everyone.wait(30)
        try:
            refuse_shared_gpus(store, Identity("srun", number, len(uuids), number, len(uuids), 0), uuids[number])
        except UserError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(uuids)) as pool:
        return list(pool.map(rank, range(len(uuids))))


def test_ranks_with_a_gpu_each_are_not_refused() -> None:
    assert told(["GPU-a", "GPU-b", "GPU-c"]) == ["", "", ""]


def test_all_ranks_are_told_which_of_them_share_a_gpu_and_what_to_do() -> None:
    messages = told(["GPU-a", "GPU-b", "GPU-c", "GPU-b"])
    assert len(set(messages)) == 1
    assert messages[0].startswith("ranks 1, 3 have the same GPU") and "--gpus-per-task=1" in messages[0]


def test_parts_of_one_gpu_are_different_gpus() -> None:
    assert told(["MIG-a", "MIG-b"]) == ["", ""]


@pytest.mark.parametrize("is_gpu", [True, False])
def test_the_meeting_is_watched_on_gpus_and_the_thread_ends_with_it(
    is_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "is_gpu", lambda device: is_gpu)

    def watchdogs() -> int:
        return sum(thread.name == "firetrain-watchdog" for thread in threading.enumerate())

    with rendezvous._watched(torch.device("cpu"), Identity(), timeout_s=60):
        assert watchdogs() == is_gpu
    assert watchdogs() == 0
