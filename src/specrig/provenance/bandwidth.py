"""How fast the device copies memory: what a pass that only reads its weights can be held against. Measured once a job, outside of timing."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import psutil

REPEATS = 8
BURST = 4
"""Copies between two looks at the clock: a GPU makes one in less than a millisecond."""
LEAST = 256 << 20
"""Bytes of the smallest buffer that is still far larger than a GPU's cache."""
MOST = 1 << 30
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def memory(device: str) -> dict[str, Any]:
    """`copy_gb_s` of the device and, of a processor, the bytes of its `last_level_cache`; None for what is not known."""
    return {"copy_gb_s": copy_gb_s(device), "last_level_cache": last_level_cache() if device == "cpu" else None}


def copy_gb_s(device: str) -> float | None:
    """GB/s (10⁹ bytes, read and written ones added) of the fastest of `REPEATS` bursts of large copies on `device`; None where memory is short.

    On a CPU with torch's threads as they are set. Untested on hardware: the copy on a GPU.
    """
    import torch

    if device == "cuda":
        free, wanted = torch.cuda.mem_get_info()[0], MOST
    else:
        free, wanted = psutil.virtual_memory().available, max(LEAST, 8 * (last_level_cache() or 0))
    size = min(MOST, wanted, int(free) // 4)
    if size < LEAST:
        return None
    try:
        source = torch.zeros(size // 4, dtype=torch.float32, device=device)
        target = torch.ones_like(source)
    except RuntimeError as error:  # another process took it
        print(f"copy bandwidth is not measured: {str(error).splitlines()[0]}", file=sys.stderr)
        return None
    seconds = []
    for _ in range(REPEATS):
        wait(device)
        start = time.perf_counter()
        for _ in range(BURST):
            target.copy_(source)
        wait(device)
        seconds.append(time.perf_counter() - start)
    return 2 * BURST * source.numel() * source.element_size() / min(seconds) / 1e9


def last_level_cache() -> int | None:
    """Bytes of the processor's largest cache, as Linux tells it; None elsewhere."""
    sizes = []
    for path in CACHES.glob("index*/size"):
        text = path.read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KMG")) * unit)
    return max(sizes, default=None)


def wait(device: str) -> None:
    """Until the device has done what it was asked to; a processor has by then."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
