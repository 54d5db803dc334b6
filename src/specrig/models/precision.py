"""`dtype: auto` of a pair: the precision that models compute in on this machine. Importing this loads no torch."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import Literal

BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""What a processor's flags in /proc/cpuinfo say where it multiplies bfloat16 (x86 twice, then ARM)."""


@cache
def precision_here(
    cpuinfo: Path = Path("/proc/cpuinfo"), gpu: Path = Path("/dev/nvidia0")
) -> Literal["bfloat16", "float32"]:
    """bfloat16 where a GPU is, or a processor with products for it: half the bytes to read. Else float32."""
    if gpu.exists() or (platform.system() == "Darwin" and platform.machine() == "arm64"):
        return "bfloat16"
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    flags = {
        flag for line in lines if line.startswith(("flags", "Features")) for flag in line.partition(":")[2].split()
    }
    return "bfloat16" if flags & BFLOAT16_FLAGS else "float32"
