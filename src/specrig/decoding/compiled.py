"""Code that is compiled for this processor (`compiled.c`), where there is a compiler: products of a few rows, and whole passes of a few tokens.

Libraries for matrix products are made for many rows at once. A pass of decoding has a few, and waits for the weights to be read: here they
lie in the order in which they are read, and as many rows as registers hold are multiplied while a weight is at hand.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from ctypes import c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SOURCE = Path(__file__).with_suffix(".c")
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fPIC", "-fopenmp", "-fno-math-errno")
VECTOR = 16
"""Floats in a vector; every width is a multiple of it, but for the number of a product's outputs."""
WIDEST = 64
"""Most rows of a product, and most tokens of a pass. For wider ones, as for prompts, libraries for large products are better."""
ALONE = 6 << 20
"""Bytes of weights up to which one thread computes: what a core's own caches nearly hold is read faster than threads can agree."""


@cache
def library() -> Any:
    """The compiled code, or None where there is no compiler or what it makes does not load. It is compiled once for a kind of processor."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    try:
        # The link names no OpenMP library: the one that torch has loaded serves, so that no two sets of threads wait for each other.
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specrig"
        made = folder / f"compiled-{_fingerprint(compiler)}.so"
        if not made.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as unfinished:
                part, whole = Path(unfinished) / "compiled.o", Path(unfinished) / "compiled.so"
                subprocess.run([compiler, *FLAGS, "-c", str(SOURCE), "-o", str(part)], check=True, capture_output=True)
                subprocess.run([compiler, "-shared", str(part), "-o", str(whole), "-lm"], check=True, capture_output=True)
                whole.replace(made)
        loaded = ctypes.CDLL(str(made))
    except (OSError, subprocess.CalledProcessError, RuntimeError):
        return None
    loaded.room.restype = loaded.input_bytes.restype = c_int64
    loaded.linear.argtypes = [c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_int64, c_int, c_int]
    loaded.linear.restype = loaded.forward.restype = None
    return loaded


def _fingerprint(compiler: str) -> str:
    """Of everything that the compiled code depends on: its source, the flags, the compiler and the processor's instructions."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else [platform.processor()]
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), lines[0] if lines else "")
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True).stdout
    told = (SOURCE.read_text(encoding="utf-8"), *FLAGS, version, flags)
    return hashlib.sha256("\0".join(told).encode()).hexdigest()[:16]


def blocked(weight: Tensor) -> Tensor:
    """A weight `[out, in]` in blocks of `VECTOR` outputs, the last padded: `[out / 16, in, 16]`, bfloat16 `[out / 16, in / 2, 16, 2]`."""
    out, into = weight.shape
    together = 2 if weight.dtype == torch.bfloat16 else 1  # inputs whose numbers lie side by side
    whole = torch.nn.functional.pad(weight, (0, 0, 0, -out % VECTOR))
    return whole.view(-1, VECTOR, into // together, together).transpose(1, 2).contiguous()


def multiplies(weight: Tensor, bias: Tensor | None) -> bool:
    """Whether `product` can serve a weight `[out, in]` here."""
    out, into = weight.shape
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.bfloat16)
        and into % VECTOR == 0
        and (bias is None or out % VECTOR == 0)
        and library() is not None
        and (weight.dtype == torch.float32 or library().input_bytes() == weight.dtype.itemsize)
    )


def product(x: Tensor, blocks: Tensor, bias: Tensor | None, out: int) -> Tensor:
    """`x @ weight.T + bias` of x `[..., in]`, `WIDEST` rows at most, with the weight `[out, in]` in `blocks` (see `blocked`)."""
    x = x.contiguous()
    into = x.shape[-1]
    y = x.new_empty((*x.shape[:-1], out))
    threads = 1 if blocks.nbytes <= ALONE else torch.get_num_threads()
    library().linear(
        y.data_ptr(),
        x.data_ptr(),
        x.numel() // into,
        blocks.data_ptr(),
        None if bias is None else bias.data_ptr(),
        into,
        out,
        x.dtype == torch.bfloat16,
        threads,
    )
    return y
