"""Measures how fast the device copies memory and multiplies, outside of timing. No pass can read its weights faster."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import psutil

from specrig.errors import first_line

REPEATS = 8
BURST = {"cpu": 1, "cuda": 4}
"""Number of copies that are timed together: a GPU makes one in less than a millisecond, a processor in a tenth of a
second."""
LEAST = 256 << 20
"""Least size of the copied buffer in bytes: far larger than a GPU's cache."""
MOST = 1 << 30
MATRIX = {"cpu": 512, "cuda": 4096}
"""Device -> rows and columns of the multiplied matrices, so that a product takes some milliseconds."""
PRODUCTS = 20
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def memory(device: str) -> dict[str, Any]:
    """`copy_gb_s` of the device and, for a CPU, the bytes of its `last_level_cache`; None for what is not known."""
    return {"copy_gb_s": copy_gb_s(device), "last_level_cache": last_level_cache() if device == "cpu" else None}


def copy_gb_s(device: str) -> float | None:
    """Copy bandwidth of `device` in GB/s (10⁹ bytes, read plus written), or None if memory is short.

    The fastest of `REPEATS` bursts of large copies counts.
    On a CPU, torch uses as many threads as are set. Untested on hardware: the copy on a GPU.
    """
    import torch

    if device == "cuda":
        free, needed = torch.cuda.mem_get_info()[0], MOST
    else:
        free, needed = psutil.virtual_memory().available, max(LEAST, 2 * (last_level_cache() or 0))
    size = min(MOST, needed, int(free) // 4)
    if size < LEAST:
        return None
    try:
        source = torch.zeros(size // 4, dtype=torch.float32, device=device)
        target = torch.ones_like(source)
    except RuntimeError as error:  # another process took it
        print(f"copy bandwidth is not measured: {first_line(error)}", file=sys.stderr)
        return None
    seconds = []
    for _ in range(REPEATS):
        wait(device)
        start = time.perf_counter()
        for _ in range(BURST[device]):
            target.copy_(source)
        wait(device)
        seconds.append(time.perf_counter() - start)
    return 2 * BURST[device] * source.numel() * source.element_size() / min(seconds) / 1e9


def product_gflop_s(device: str) -> float:
    """Speed of a product of two float32 matrices in GFLOP/s; the fastest of `PRODUCTS` counts."""
    import torch

    size = MATRIX[device]
    left = torch.ones(size, size, device=device)
    right, out = left.clone(), torch.empty_like(left)
    seconds = []
    for _ in range(PRODUCTS):
        wait(device)
        start = time.perf_counter()
        torch.mm(left, right, out=out)
        wait(device)
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds) / 1e9


def last_level_cache() -> int | None:
    """Bytes of the processor's largest cache as Linux reports it; None on other systems."""
    sizes = []
    for path in CACHES.glob("index*/size"):
        text = path.read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KMG")) * unit)
    return max(sizes, default=None)


def wait(device: str) -> None:
    """Wait until a GPU has done all its work; on a CPU, nothing is left to wait for."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
