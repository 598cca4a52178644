"""What the GPUs have drawn, as they tell it themselves."""

from __future__ import annotations

from typing import Any

import torch


class Meter:
    """The joules of one device since its driver was loaded, by NVML (nvmlDeviceGetTotalEnergyConsumption, Volta and later).

    None where that is not measured: no GPU, no nvidia-ml-py, a part of a GPU (MIG), a driver that does not tell.
    """

    def __init__(self, device: torch.device) -> None:
        self._nvml: Any = None
        if device.type != "cuda":
            return
        try:
            import pynvml
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        except pynvml.NVMLError:
            return
        self._nvml = pynvml

    def joules(self) -> float | None:
        """Now; only differences mean something."""
        if self._nvml is None:
            return None
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3
        except self._nvml.NVMLError:
            return None
