"""Ranks with the same GPU, and ranks without one among others, are told so in words, on all ranks, before NCCL starts."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from ranks import on_ranks

from firetrain.cluster import Identity
from firetrain.errors import UserError
from firetrain.launch.port import free_port
from firetrain.transport import rendezvous
from firetrain.transport.agreement import each_has_a_gpu, gather_texts
from firetrain.transport.transport import Transport


def agree(identity: Identity, port: int, devices: Sequence[str], transport: str) -> str:
    """The error of a rank, over a store that ends when rank 0 leaves, or whether each has a GPU."""
    store = torch.distributed.TCPStore("127.0.0.1", port, identity.world_size, identity.is_first)
    try:
        return str(each_has_a_gpu(store, identity, devices[identity.rank], transport))
    except UserError as error:
        return str(error)


def told(devices: Sequence[str], transport: str = "nccl") -> list[str]:
    """What each rank is told if the ranks have these devices."""
    port, ranks = free_port(20_000, 29_999), range(len(devices))
    with ThreadPoolExecutor(len(devices)) as pool:
        identities = [Identity("srun", rank, len(devices), rank, len(devices), 0) for rank in ranks]
        return list(pool.map(agree, identities, *([one] * len(devices) for one in (port, devices, transport))))


@pytest.mark.parametrize("devices", [("GPU-a", "GPU-b", "GPU-c"), ("cpu", "cpu"), ("MIG-a", "MIG-b")])
def test_ranks_with_a_gpu_each_and_ranks_without_any_are_not_refused(devices: Sequence[str]) -> None:
    assert told(devices) == [str("cpu" not in devices)] * len(devices)


def test_all_ranks_are_told_which_of_them_share_a_gpu_and_what_to_do() -> None:
    messages = told(["GPU-a", "GPU-b", "GPU-c", "GPU-b"])
    assert len(set(messages)) == 1
    assert messages[0].startswith("ranks 1, 3 have the same GPU") and "--gpus-per-task=1" in messages[0]


def test_with_auto_ranks_that_share_a_gpu_compute_on_the_cpu_and_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(["GPU-a", "GPU-a"], "auto") == ["False"] * 2
    note = capsys.readouterr().out
    assert note.startswith("note: ranks 0, 1 have the same GPU") and note.count("compute on the CPU") == 1
    assert told(["GPU-a", "GPU-b"], "auto") == ["True"] * 2


def test_all_ranks_are_told_which_of_them_have_no_gpu() -> None:
    messages = told(["GPU-a", "cpu", "GPU-c"])
    assert len(set(messages)) == 1 and messages[0].startswith("rank 1 of 3 found no GPU, but the others did")


def test_texts_are_gathered_in_the_order_of_ranks() -> None:
    port = free_port(20_000, 29_999)

    def rank(number: int) -> list[str]:
        identity = Identity("srun", number, 3, number, 3, 0)
        store = torch.distributed.TCPStore("127.0.0.1", port, 3, number == 0)
        return [text for name in ("a", "b") for text in gather_texts(store, identity, name, f"{name}{number}")]

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(rank, range(3))) == [["a0", "a1", "a2", "b0", "b1", "b2"]] * 3


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


def size(transport: Transport) -> int:
    return transport.size


def test_ranks_without_gpus_meet() -> None:
    assert on_ranks(3, size) == [3, 3, 3]
