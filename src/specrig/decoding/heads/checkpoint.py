"""What all head checkpoints share: writing model.safetensors, and finding tensors that do not belong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file
from torch import Tensor

if TYPE_CHECKING:
    from pathlib import Path

Shapes = dict[str, tuple[int, ...]]
"""Tensor name -> shape."""


def write(folder: Path, config: Any, tensors: dict[str, Tensor], shapes: Shapes) -> None:
    """Write config.json and model.safetensors (fp32) with the tensors that `shapes` names."""
    config.save_pretrained(folder)
    kept = {name: tensors[name].detach().float().cpu().contiguous().clone() for name in shapes}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def faults(tensors: dict[str, Tensor], shapes: Shapes) -> str:
    """What is missing, superfluous or of another shape; empty when all is right."""
    wrong = [f"{name} is missing" for name in shapes if name not in tensors]
    wrong += [f"{name} does not belong there" for name in tensors if name not in shapes]
    wrong += [
        f"{name} is {list(tensors[name].shape)} instead of {list(shape)}"
        for name, shape in shapes.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    return "; ".join(wrong)
