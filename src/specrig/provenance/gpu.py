"""Finds those of the machine's GPUs that torch sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def gpu_handles(nvml: Any, uuids: Sequence[str]) -> list[Any]:
    """Return NVML's handles of the GPUs with these UUIDs.

    Numbers would not do: NVML counts all GPUs, torch only those that CUDA_VISIBLE_DEVICES shows.
    """
    found = []
    for uuid in uuids:
        bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
        try:
            found.append(nvml.nvmlDeviceGetHandleByUUID(f"GPU-{bare}"))
        except nvml.NVMLError:  # a slice of a GPU
            found.append(nvml.nvmlDeviceGetHandleByUUID(f"MIG-{bare}"))
    return found


def torch_uuids(count: int | None = None) -> list[str]:
    """UUIDs of the first `count` GPUs that torch sees, in its order; of all if `count` is None."""
    import torch

    count = torch.cuda.device_count() if count is None else min(count, torch.cuda.device_count())
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(count)]
