"""The energy of GPUs, read from the driver's counter."""

from __future__ import annotations

from typing import Any

import torch

from firetrain.transport.device import gpu_uuid, is_gpu


class Meter:
    """The energy counter of one device, read with NVML (nvmlDeviceGetTotalEnergyConsumption, Volta and later).

    There is no count without a GPU or nvidia-ml-py, on a part of a GPU (MIG), or if the driver does not support it.
    """

    def __init__(self, device: torch.device) -> None:
        self._nvml: Any = None
        if not is_gpu(device):
            return
        try:
            import pynvml
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid(device))
        except pynvml.NVMLError:
            return
        self._nvml = pynvml

    def joules(self) -> float | None:
        """Joules since the driver was loaded, of which only differences are meaningful; None if they are not counted."""
        if self._nvml is None:
            return None
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3
        except self._nvml.NVMLError:
            return None
