"""Which of the machine's GPUs are the ones that torch sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def gpu_handles(nvml: Any, uuids: Sequence[str]) -> list[Any]:
    """NVML's handles of GPUs by what torch calls them: NVML numbers all GPUs by slot, torch the visible ones (CUDA_VISIBLE_DEVICES)."""
    found = []
    for uuid in uuids:
        bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
        try:
            found.append(nvml.nvmlDeviceGetHandleByUUID(f"GPU-{bare}"))
        except nvml.NVMLError:  # a slice of a GPU
            found.append(nvml.nvmlDeviceGetHandleByUUID(f"MIG-{bare}"))
    return found


def torch_uuids(count: int | None = None) -> list[str]:
    """UUIDs of the first `count` (all) GPUs that torch sees, in its order."""
    import torch

    count = torch.cuda.device_count() if count is None else min(count, torch.cuda.device_count())
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(count)]
