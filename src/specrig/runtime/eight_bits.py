"""Weights of 8 bits in files: a quarter of their size, known to no other program."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from specrig.runtime.types import SCALE


def packed(tensors: Mapping[str, Tensor], *, eight_bits: bool) -> dict[str, Tensor]:
    """The tensors to give away: numbers in bfloat16, or with `eight_bits` matrices in 8 bits, each row with a scale of its
    own in `<name>_scale` `[rows, 1]`.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if eight_bits and tensor.dim() == 2 and len(tensor) > 1 and tensor.is_floating_point():
            scale = tensor.float().abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
            found[name], found[name + SCALE] = (tensor.float() / scale).round().to(torch.int8), scale
        else:
            found[name] = tensor.bfloat16() if tensor.is_floating_point() else tensor
    return found


def restored(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices that `packed` rounded to 8 bits in float32; other tensors as they are."""
    scales = {name for name in tensors if name.endswith(SCALE) and name.removesuffix(SCALE) in tensors}
    return {
        name: tensor * tensors[name + SCALE] if name + SCALE in scales else tensor
        for name, tensor in tensors.items()
        if name not in scales
    }
