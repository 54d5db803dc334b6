"""What all head checkpoints share: reading and writing them, drawing an untrained one, finding tensors that do not
belong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedConfig

from specrig.runtime.types import DecodingError

if TYPE_CHECKING:
    from pathlib import Path

Head = TypeVar("Head")
Shapes = dict[str, tuple[int, ...]]
"""Tensor name -> shape."""


def write(folder: Path, config: Any, tensors: dict[str, Tensor], shapes: Shapes) -> None:
    """Write config.json and model.safetensors (fp32, token ids aside) with the tensors that `shapes` names."""
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    kept = {name: tensors[name].detach().cpu().contiguous().clone() for name in shapes}
    kept = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in kept.items()}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def read(folder: Path) -> dict[str, Tensor]:
    """Tensors of model.safetensors, or of pytorch_model.bin as older heads were published. Raises OSError where there
    is neither.
    """
    older = folder / "pytorch_model.bin"
    if older.is_file() and not (folder / "model.safetensors").is_file():
        tensors: dict[str, Tensor] = torch.load(older, map_location="cpu", weights_only=True)
        return tensors
    return load_file(folder / "model.safetensors")


@contextmanager
def reading(folder: Path, title: str) -> Iterator[None]:
    """Raise DecodingError, with the folder and the fix, for whatever a library raises at a damaged file within.

    title: what the folder should hold, e.g. "Medusa heads".
    """
    try:
        yield
    except (DecodingError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # transformers, safetensors and torch have many of their own
        reason = " ".join(str(error).split())[:200] or "no message"
        kind = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
        raise DecodingError(
            f"{folder}: no {title} there, or damaged ({kind}{reason}); copy or train it again, and check its "
            "config.json"
        ) from error


def load_head(
    title: str,
    folder: Path,
    config_class: type[PreTrainedConfig],
    build: Callable[[Any, dict[str, Tensor]], Head],
    ignored: Sequence[str] = (),
) -> Head:
    """`build(config, tensors)` of the head in `folder`. Raises DecodingError where it holds none that fits.

    ignored: tensors that are left out.
    """
    with reading(folder, title):
        config = config_class.from_pretrained(folder)
        tensors = {name: tensor for name, tensor in read(folder).items() if name not in ignored}
        try:
            return build(config, tensors)
        except DecodingError as error:
            raise DecodingError(f"{folder}: {error}") from error


def untrained(shapes: Shapes, seed: int, deviation: float) -> dict[str, Tensor]:
    """Normal matrices, norms of one."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: deviation * torch.randn(shape, generator=generator) if len(shape) > 1 else torch.ones(shape)
        for name, shape in shapes.items()
    }


def normal(shapes: Shapes, seed: int, deviation: float) -> dict[str, Tensor]:
    """Normal tensors, biases too; a reduced vocabulary is the target's first tokens."""
    generator = torch.Generator().manual_seed(seed)
    found = {name: deviation * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return found | ({"token_map": torch.arange(*shapes["token_map"])} if "token_map" in shapes else {})


def check_vocabulary(drafted: Tensor, vocabulary: int, name: str) -> None:
    """Raise DecodingError where a reduced vocabulary `[Vd]` names a token twice or one that the target lacks."""
    if drafted.unique().numel() < len(drafted) or drafted.min() < 0 or drafted.max() >= vocabulary:
        raise DecodingError(f"not a head of this target: {name} maps outside the {vocabulary} tokens or twice")


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
