"""Errors of the library: those of a lost peer say what was waited for, others keep their own text."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from firetrain.errors import FiretrainError, LostPeer
from firetrain.transport.lost_peers import lost_peers

DUPLICATE = """NCCL error in: NCCLUtils.cpp:77, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9
ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
Last error:
Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 65000"""


@pytest.mark.parametrize(
    "error", [RuntimeError("Connection closed by peer\nframe #0"), ConnectionResetError("reset"), OSError()]
)
def test_a_broken_connection_is_a_lost_peer_with_what_was_waited_for(error: Exception) -> None:
    with (
        pytest.raises(LostPeer, match="rank 3: a sum over all ranks did not complete") as told,
        lost_peers(3, "a sum over all ranks"),
    ):
        raise error
    assert told.value.__cause__ is error and "\n" not in str(told.value)


def test_what_nccl_refuses_is_told_in_its_words_and_blames_no_other_rank() -> None:
    with pytest.raises(FiretrainError) as told, lost_peers(1, "the meeting of all ranks"):
        raise RuntimeError(DUPLICATE)
    assert not isinstance(told.value, LostPeer)
    assert "rank 1: NCCL refuses these ranks" in str(told.value)
    assert "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 65000" in str(told.value)


def test_a_failure_of_nccl_on_the_rank_s_own_gpu_is_not_blamed_on_another_rank() -> None:
    text = (
        "NCCL error in: NCCLUtils.cpp:77, unhandled cuda error\nncclUnhandledCudaError: Call to CUDA function failed."
    )
    with (
        pytest.raises(FiretrainError, match="rank 2: NCCL failed on the GPU of this rank: ncclUnhandled") as told,
        lost_peers(2, "step 1, bucket 0"),
    ):
        raise RuntimeError(text)
    assert not isinstance(told.value, LostPeer)


def test_a_gpu_without_memory_keeps_its_error() -> None:
    with pytest.raises(torch.OutOfMemoryError), lost_peers(0, "step 1, bucket 0"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def test_a_rank_without_memory_keeps_its_error_and_ends_with_one_line() -> None:
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"), lost_peers(0, "step 1, bucket 0"):
        torch.empty(1 << 60, dtype=torch.uint8)
    program = (
        "import torch\nfrom firetrain.training.process import fail\n"
        "try: torch.empty(1 << 60, dtype=torch.uint8)\nexcept BaseException as error: fail(error, False, 'Use less')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "firetrain: out of memory: 1,152,921,504.6 GB more could not be allocated. Use less\n"


def test_errors_of_the_program_pass() -> None:
    with pytest.raises(ZeroDivisionError), lost_peers(0, "nothing"):
        1 / 0  # noqa: B018


def test_a_rank_without_memory_ends_with_one_line_and_what_to_change() -> None:
    program = (
        "import torch\nfrom firetrain.training.process import fail\n"
        "fail(torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...'), False)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("firetrain: CUDA out of memory. Lower batch.per_rank_max")


@pytest.mark.skipif(not hasattr(torch, "AcceleratorError"), reason="this version of torch has no such error")
def test_a_fault_of_the_rank_s_own_gpu_is_not_blamed_on_another_rank() -> None:
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"), lost_peers(0, "step 1, bucket 0"):
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
