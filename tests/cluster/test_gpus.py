"""GPUs are counted without torch, and ranks that would share one are noticed before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Command

from firetrain.cluster import gpus
from firetrain.cluster.gpus import count_gpus, too_few_gpus
from firetrain.errors import UserError


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose driver and device files are created by the test."""
    (tmp_path / "dev").mkdir()
    monkeypatch.setattr(gpus, "_DRIVER", tmp_path / "driver")
    monkeypatch.setattr(gpus, "_DEVICES", tmp_path / "dev")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def with_gpus(machine: Path, count: int) -> None:
    for number in range(count):
        (machine / "driver" / f"0000:{number:02}:00.0").mkdir(parents=True)


def test_the_driver_s_list_counts(machine: Path) -> None:
    assert count_gpus() == 0
    with_gpus(machine, 8)
    assert count_gpus() == 8


def test_without_the_list_device_files_count_and_others_of_that_name_do_not(machine: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-modeset"):
        (machine / "dev" / name).touch()
    assert count_gpus() == 2


@pytest.mark.parametrize(
    ("listed", "count"),
    [("", 0), ("0", 1), ("2,0", 2), ("-1", 0), ("0,-1,1", 1), ("0,9,1", 1), ("GPU-8f2a,GPU-11c0", 2), ("MIG-5c89", 1)],
)
def test_the_variable_limits_them_as_cuda_reads_it(
    machine: Path, monkeypatch: pytest.MonkeyPatch, listed: str, count: int
) -> None:
    with_gpus(machine, 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert count_gpus() == count


def test_the_gpus_of_another_maker_are_not_known(machine: Path) -> None:
    (machine / "dev" / "kfd").touch()
    assert count_gpus() is None


@pytest.mark.parametrize(
    ("count", "ranks", "transport"), [(0, 4, "auto"), (4, 4, "nccl"), (8, 4, "auto"), (1, 4, "gloo"), (0, 4, "gloo")]
)
def test_ranks_with_a_gpu_each_or_without_any_have_nothing_to_say(count: int, ranks: int, transport: str) -> None:
    assert too_few_gpus(count, ranks, transport) == ""


def test_ranks_that_would_share_a_gpu_compute_on_the_cpu_and_say_so() -> None:
    assert too_few_gpus(1, 4, "auto") == (
        "4 ranks on a machine with 1 GPU: each rank needs its own, so all ranks compute on the CPU and communicate over Gloo"
    )


@pytest.mark.parametrize(
    ("count", "said"), [(0, "4 ranks on a machine with no GPUs"), (2, "4 ranks on a machine with 2 GPUs")]
)
def test_nccl_without_a_gpu_for_each_rank_is_refused(count: int, said: str) -> None:
    with pytest.raises(UserError, match=f"cluster.transport is nccl, which needs a GPU for each rank: {said}"):
        too_few_gpus(count, 4, "nccl")


def test_a_launch_with_nccl_and_too_few_gpus_starts_nothing(firetrain: Command, tmp_path: Path) -> None:
    done = firetrain("launch", "quickstart", "--ranks-per-node", "64", "--set", "cluster.transport=nccl")
    assert done.returncode == 2 and "needs a GPU for each rank: 64 ranks" in done.stderr, done.stderr
    assert not (tmp_path / "results").exists()
