"""The choice of a rank's device, and the message if there is none for it."""

from __future__ import annotations

import pytest
import torch

from firetrain.cluster import Identity
from firetrain.errors import UserError
from firetrain.transport.device import (
    choose_device,
    device_name,
    end_of,
    is_gpu,
    issued_on,
    new_stream,
    set_arithmetic,
    synchronize,
    wait_for,
    without_effect,
)

THIRD = Identity("srun", 2, 4, local_rank=2, local_world_size=4)


def test_without_a_gpu_ranks_compute_on_the_cpu_unless_nccl_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert choose_device(THIRD, "auto") == choose_device(THIRD, "gloo") == torch.device("cpu")
    with pytest.raises(UserError, match="cluster.transport is nccl, which needs a GPU for each rank: .* with no GPUs"):
        choose_device(THIRD, "nccl")


@pytest.mark.parametrize(("visible", "index"), [(1, 0), (4, 2), (8, 2)])
def test_a_rank_takes_the_gpu_of_its_local_number_or_the_only_one_it_sees(
    visible: int, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    assert choose_device(THIRD, "auto") == torch.device("cuda", index) and taken == [torch.device("cuda", index)]
    assert choose_device(THIRD, "gloo") == torch.device("cpu")


def test_more_ranks_than_gpus_on_a_node_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(
        UserError, match="rank 2 has local rank 2, but its node has 2 GPUs.*lower cluster.ranks_per_node"
    ):
        choose_device(THIRD, "auto")


@pytest.mark.parametrize("launcher", ["firetrain", "torchrun"])
def test_ranks_that_would_share_gpus_all_compute_on_the_cpu_and_the_first_says_so(
    launcher: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for rank in range(2):
        identity = Identity(launcher, rank, 2, local_rank=rank, local_world_size=2)
        assert choose_device(identity, "auto") == torch.device("cpu")
        with pytest.raises(UserError, match="needs a GPU for each rank: 2 ranks on a machine with 1 GPU"):
            choose_device(identity, "nccl")
    assert capsys.readouterr().out.count("note: 2 ranks on a machine with 1 GPU") == 1


def test_emulated_nodes_share_the_gpus_of_their_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    ranks = [
        Identity("firetrain", rank, 4, local_rank=rank % 2, local_world_size=2, node=rank // 2) for rank in range(4)
    ]
    assert [choose_device(one, "auto").index for one in ranks] == [0, 1, 2, 3]


def test_a_node_of_torchrun_with_too_few_gpus_is_refused_because_other_nodes_may_have_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    identity = Identity("torchrun", 0, 4, local_rank=0, local_world_size=2)
    with pytest.raises(UserError, match="^2 ranks on a machine with 1 GPU: .* set cluster.transport to gloo"):
        choose_device(identity, "auto")
    with pytest.raises(UserError, match="^cluster.transport is nccl, .*2 ranks on a machine with 1 GPU"):
        choose_device(identity, "nccl")
    assert choose_device(identity, "gloo") == torch.device("cpu")


def test_on_the_cpu_there_is_nothing_to_wait_for() -> None:
    cpu = torch.device("cpu")
    assert not is_gpu(cpu) and is_gpu(torch.device("cuda", 0)) and device_name(cpu) == "cpu"
    stream = new_stream(cpu)
    assert stream is None
    with issued_on(stream):
        total = torch.ones(3).sum()
    wait_for(end_of(stream))
    synchronize(cpu)
    assert total == 3


def test_settings_of_gpus_say_that_they_change_nothing_on_cpus() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    assert without_effect(cpu, "bfloat16", deterministic=False) == without_effect(gpu, "tf32", deterministic=True) == []
    format_note, kernel_note = without_effect(cpu, "tf32", deterministic=True)
    assert format_note.startswith("precision tf32") and kernel_note.startswith("deterministic")


def test_float32_is_float32_and_tf32_is_asked_for_by_its_name() -> None:
    """torch's precision switches, which can also be set on a CPU."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic)
    gpu = torch.device("cuda", 0)
    try:
        set_arithmetic(torch.device("cpu"), "float32", deterministic=True)
        assert (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic) == before
        set_arithmetic(gpu, "float32", deterministic=False)
        assert (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic) == (
            False,
            False,
            True,
            False,
        )
        set_arithmetic(gpu, "tf32", deterministic=True)
        assert (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic) == (True, True, False, True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = before
        torch.use_deterministic_algorithms(False)
