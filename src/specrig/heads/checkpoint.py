"""What all head checkpoints share: reading and writing them, drawing an untrained one, finding tensors that do not
belong.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedConfig

from specrig.runtime.eight_bits import restored
from specrig.runtime.types import DecodingError

if TYPE_CHECKING:
    from pathlib import Path

    from specrig.runtime.model import CachedModel

Shapes = dict[str, tuple[int, ...]]
"""Tensor name -> shape."""
FAULTS = 6
"""So many tensors that do not fit are named."""


def write(folder: Path, config: Any, tensors: dict[str, Tensor], shapes: Shapes) -> None:
    """Write config.json and model.safetensors (fp32, token ids aside) with the tensors that `shapes` names."""
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    kept = {name: tensors[name].detach().cpu().contiguous().clone() for name in shapes}
    kept = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in kept.items()}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def read(folder: Path) -> dict[str, Tensor]:
    """Tensors of model.safetensors, those of 8 bits `restored`, or of pytorch_model.bin as older heads were
    published. Raises OSError where there is neither.
    """
    older = folder / "pytorch_model.bin"
    if older.is_file() and not (folder / "model.safetensors").is_file():
        tensors: dict[str, Tensor] = torch.load(older, map_location="cpu", weights_only=True)
        return tensors
    return restored(load_file(folder / "model.safetensors"))


def drafted_tokens(config: Mapping[str, Any], tensors: dict[str, Tensor]) -> Tensor | None:
    """The ids `[Vd]` of the tokens that a checkpoint drafts, in its order and in whichever of the three forms it names
    them; None: all. config: its config.json.
    """
    if "d2t" in tensors:
        return tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    listed = (config.get("specrig") or {}).get("drafted")
    return torch.tensor(listed) if listed is not None else tensors.get("token_map")


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


class Checkpoint(ABC):
    """A head that is kept as config.json and model.safetensors."""

    title: ClassVar[str]
    """What its folder holds, e.g. "Medusa heads"."""
    config_class: ClassVar[type[PreTrainedConfig]]
    ignored: ClassVar[tuple[str, ...]] = ()
    """Tensors of published checkpoints that are left out."""

    @abstractmethod
    def __init__(self, config: Any, tensors: dict[str, Tensor], target: CachedModel) -> None:
        """`tensors`: see `shapes`; they take the target's device and precision. Raises DecodingError where they do not
        fit.
        """

    @staticmethod
    @abstractmethod
    def shapes(config: Any) -> Shapes:
        """Of the tensors that a head with this configuration has."""

    @classmethod
    @abstractmethod
    def random_tensors(cls, config: Any, seed: int, deviation: float = 0.02) -> dict[str, Tensor]:
        """Weights of an untrained head; a reduced vocabulary is the target's first tokens."""

    @classmethod
    def save(cls, folder: Path, config: Any, tensors: dict[str, Tensor]) -> None:
        """Write config.json and model.safetensors (fp32)."""
        write(folder, config, tensors, cls.shapes(config))

    @classmethod
    def load(cls, folder: Path, target: CachedModel) -> Self:
        """Read a head's folder for this target. Raises DecodingError where it holds none that fits."""
        with reading(folder, cls.title):
            config = cls.config_class.from_pretrained(folder)
            tensors = {name: tensor for name, tensor in read(folder).items() if name not in cls.ignored}
            try:
                return cls(config, tensors, target)
            except DecodingError as error:
                raise DecodingError(f"{folder}: {error}") from error


def untrained(shapes: Shapes, seed: int, deviation: float) -> dict[str, Tensor]:
    """Normal matrices, norms of one; a reduced vocabulary is the target's first tokens."""
    generator = torch.Generator().manual_seed(seed)
    found = {
        name: deviation * torch.randn(shape, generator=generator) if len(shape) > 1 else torch.ones(shape)
        for name, shape in shapes.items()
    }
    return found | ({"d2t": torch.zeros(*shapes["d2t"], dtype=torch.int64)} if "d2t" in shapes else {})


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
    more = [f"and {len(wrong) - FAULTS} more"] if len(wrong) > FAULTS else []
    return "; ".join([*wrong[:FAULTS], *more])
