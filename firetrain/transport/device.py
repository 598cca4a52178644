"""The device of a rank, and all operations that depend on whether it is a GPU."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from firetrain.cluster import Identity
from firetrain.cluster.gpus import too_few_gpus
from firetrain.errors import FiretrainError, UserError
from firetrain.words import counted


def visible_gpus() -> int:
    """The number of GPUs that this process sees."""
    return torch.cuda.device_count()


def first_device() -> torch.device:
    """The first GPU, or the CPU if this process sees none."""
    return torch.device("cuda", 0) if visible_gpus() else torch.device("cpu")


def choose_device(identity: Identity, transport: str) -> torch.device:
    """The device of this rank: its own GPU, or the CPU if `transport` is gloo or there is no GPU.

    Ranks do not share GPUs. If one machine has fewer GPUs than ranks, all ranks compute on the CPU with auto, and rank 0 prints
    a note. UserError if `transport` is nccl, or if nodes may differ, because then the ranks could make different choices.
    """
    visible = visible_gpus() if transport != "gloo" else 0
    # firetrain's launcher emulates nodes on one machine
    alone = identity.launcher == "firetrain"
    index, ranks = (identity.rank, identity.world_size) if alone else (identity.local_rank, identity.local_world_size)
    if visible == 0 or (visible < ranks and (alone or identity.launcher == "torchrun")):
        if transport == "auto" and visible and identity.world_size > ranks:
            raise UserError(
                f"{counted(ranks, 'rank')} on a machine with {counted(visible, 'GPU')}: each rank needs its own, and "
                "other machines may have enough, so the ranks might choose differently: start fewer ranks on each machine, "
                "or set cluster.transport to gloo"
            )
        said = too_few_gpus(visible, ranks, transport)
        if said and identity.is_first:
            print(f"note: {said}", flush=True)
        return torch.device("cpu")
    # srun and mpirun may show each rank one GPU, or all GPUs of its node
    if visible != 1 and index >= visible:
        raise UserError(
            f"rank {identity.rank} has local rank {index}, but its node has {visible} GPUs; each rank needs one GPU: "
            "lower cluster.ranks_per_node"
        )
    device = torch.device("cuda", 0 if visible == 1 else index)
    torch.cuda.set_device(device)
    return device


def use_in_this_thread(device: torch.device) -> None:
    """Make a GPU the current one of this thread. Threads begin with the first GPU, on which they would take memory."""
    if is_gpu(device):
        torch.cuda.set_device(device)


def is_gpu(device: torch.device) -> bool:
    """Whether `device` is a GPU, on which operations run asynchronously."""
    return device.type == "cuda"


def backend_of(device: torch.device) -> str:
    """The library over which ranks on such devices communicate: nccl or gloo."""
    return "nccl" if is_gpu(device) else "gloo"


def device_name(device: torch.device) -> str:
    """The name of the GPU, or "cpu"."""
    return torch.cuda.get_device_name(device) if is_gpu(device) else "cpu"


def gpu_facts(device: torch.device) -> dict[str, str]:
    """The GPU of this rank and the versions of its libraries; empty if it computes on the CPU."""
    if not is_gpu(device):
        return {}
    nccl = ".".join(map(str, nccl_version()))
    return {"gpu": torch.cuda.get_device_name(device), "cuda": str(torch.version.cuda), "nccl": nccl}


def nccl_version() -> tuple[int, ...]:
    """The version of NCCL with which torch was built."""
    return tuple(torch.cuda.nccl.version())


def synchronize(device: torch.device) -> None:
    """Wait until `device` has completed all issued operations."""
    if is_gpu(device):
        torch.cuda.synchronize(device)


def free_bytes(device: torch.device) -> int:
    """The free memory of a GPU in bytes; 0 for the CPU."""
    return int(torch.cuda.mem_get_info(device)[0]) if is_gpu(device) else 0


def timing_event() -> Any:
    """An event at this point of a GPU's current stream; `elapsed_time` between two gives milliseconds."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def gpu_uuid(device: torch.device) -> str:
    """The identifier of a GPU in NVML's form."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def pin(values: torch.Tensor) -> torch.Tensor:
    """Page-lock the host memory of `values`, for copies that the host does not wait for.

    Shared memory is registered where it is; other memory is replaced by pinned memory of the same layout.
    """
    if not values.is_shared():
        return torch.empty_like(values, pin_memory=True)
    size_bytes = values.numel() * values.element_size()
    code = torch.cuda.cudart().cudaHostRegister(values.data_ptr(), size_bytes, 0)
    if int(code) != 0:
        raise FiretrainError(
            f"cannot pin {size_bytes} bytes of shared memory (CUDA error {int(code)}): check ulimit -l, "
            "or decode images in the rank's own process with data.decode_in: threads"
        )
    return values


def unpin(values: torch.Tensor) -> None:
    """Undo `pin`, before the memory is freed: its addresses may be used again."""
    if values.is_shared():
        torch.cuda.cudart().cudaHostUnregister(values.data_ptr())


def copy_to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a host tensor to `device`. To a GPU it is copied from pinned memory, so that the host does not wait."""
    if values.device == device:
        return values
    if is_gpu(device) and not values.is_pinned():
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


def without_effect(device: torch.device, precision: str, *, deterministic: bool) -> list[str]:
    """A note for each of these settings that changes nothing on `device`.

    >>> without_effect(torch.device("cpu"), "tf32", deterministic=False)
    ['precision tf32 needs a GPU: on CPUs the run computes in float32']
    """
    if is_gpu(device):
        return []
    notes = ["precision tf32 needs a GPU: on CPUs the run computes in float32"] if precision == "tf32" else []
    return notes + (["deterministic selects GPU kernels: it has no effect on CPUs"] if deterministic else [])


def set_arithmetic(device: torch.device, precision: str, *, deterministic: bool) -> None:
    """Choose the kernels of a GPU: TF32 unless `precision` is float32, and the fastest unless they must be deterministic.

    torch rounds the inputs of convolutions to TF32 by default, which is not float32. Deterministic kernels exist for most
    operations; torch warns of the others.
    """
    if not is_gpu(device):
        return
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "float32"
    torch.backends.cudnn.benchmark = not deterministic
    torch.backends.cudnn.deterministic = deterministic
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    # torch would fill all new memory, which no result depends on
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts


def new_stream(device: torch.device) -> Any:
    """A new stream on a GPU; None on the CPU."""
    return torch.cuda.Stream(device) if is_gpu(device) else None


def issued_on(stream: Any, *, waits: bool = True) -> AbstractContextManager[Any]:
    """Context manager: make `stream` current; with `waits`, it first waits for the current one. No-op if `stream` is None."""
    if stream is None:
        return nullcontext()
    if waits:
        stream.wait_stream(torch.cuda.current_stream())
    return torch.cuda.stream(stream)


def now(device: torch.device) -> Any:
    """An event at this point of the current stream, on which the host can wait without using a core; None on the CPU."""
    if not is_gpu(device):
        return None
    event = torch.cuda.Event(blocking=True)
    event.record()
    return event


def use_after(event: Any, *values: torch.Tensor) -> None:
    """Make the current stream, which will use `values` of another stream, wait for `event`. No-op if `event` is None."""
    if event is not None:
        wait_for(event)
        for value in values:
            value.record_stream(torch.cuda.current_stream())  # their memory must not be reused before


def end_of(stream: Any) -> Any:
    """An event at the end of what has been issued on `stream` so far; None if `stream` is None."""
    return None if stream is None else stream.record_event()


def wait_for(event: Any) -> None:
    """Make the current stream wait for `event`; the host does not wait. No-op if `event` is None."""
    if event is not None:
        torch.cuda.current_stream().wait_event(event)
