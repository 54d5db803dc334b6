"""The arithmetic between a layer's matrix products. On a GPU each is compiled into one kernel: a step of an 8B model has a thousand
small ones otherwise, and two microseconds for each are a fifth of what reading its weights takes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)

Arithmetic = Callable[..., Tensor]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on `[B, n, heads, d]`; the tables are `[n, 1, d]` or `[B, n, 1, d]`, the sign of rotate_half is in `sin`."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def swiglu(gate_up: Tensor) -> Tensor:
    """SiLU(gate) · up of `[..., 2I]`, gate first."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


@cache
def fused(function: Arithmetic, device_type: str) -> Arithmetic:
    """`function`, compiled where kernels are launched one by one; as it is elsewhere, or where compiling fails."""
    if device_type != "cuda":
        return function
    compiled: Arithmetic = torch.compile(function)
    broken = False

    def run(*inputs: Tensor) -> Tensor:
        nonlocal broken
        if not broken:
            try:
                return compiled(*inputs)
            except Exception as error:  # whatever a compiler, its cache folder or a missing gcc may raise
                broken = True
                warnings.warn(f"torch.compile cannot be used, {function.__name__} runs as it is: {error}", stacklevel=2)
        return function(*inputs)

    return run
