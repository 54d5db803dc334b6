"""What all head checkpoints share: reading and writing them, drawing an untrained one, finding tensors that do not
belong.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedConfig

from specrig.errors import with_type
from specrig.heads import contents
from specrig.heads import shapes as of
from specrig.heads.shapes import Fits, Shapes
from specrig.runtime.eight_bits import restored
from specrig.runtime.types import DecodingError

if TYPE_CHECKING:
    from pathlib import Path

    from specrig.runtime.model import CachedModel


def write(folder: Path, config: Any, tensors: dict[str, Tensor], shapes: Shapes) -> None:
    """Write config.json and model.safetensors (fp32, token ids aside) with the tensors that `shapes` names."""
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    kept = {name: tensors[name].detach().cpu().contiguous().clone() for name in shapes}
    kept = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in kept.items()}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def read(folder: Path, title: str = "weights") -> dict[str, Tensor]:
    """Tensors of a head's folder under their own names, those of 8 bits `restored`, of whichever of `contents.WEIGHTS` is
    there. Raises DecodingError where none is.
    """
    found: dict[str, Tensor] = {}
    for file in contents.files(folder, title):
        contents.check_pointer(file)
        try:
            if file.suffix == ".safetensors":
                found |= load_file(file)
            else:
                found |= torch.load(file, map_location="cpu", weights_only=True)
        except MemoryError:
            raise
        except Exception as error:  # each library has its own
            reason = f"damaged ({with_type(error)}); {contents.AGAIN}"
            if isinstance(error, UnpicklingError) and "Unsupported" in str(error):
                reason = "it holds more than tensors, which is not read; save its state_dict alone, as safetensors"
            raise DecodingError(f"{file}: {reason}") from error
    return restored(found)


def read_head(folder: Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The keys of config.json and the tensors of a head of this kind, under our names (`heads.layouts`)."""
    if kind not in contents.SHAPES:  # a model's folder, or a head of one layout
        title = contents.TITLES.get(kind, f"{kind} head")
        return contents.read_config(folder, title), read(folder, title)
    found, tensors = described(folder, kind)
    return found.config, tensors


def sizes_of(target: CachedModel) -> Fits:
    """Of a target that is loaded."""
    return Fits(target.hidden_size, target.config.vocab_size, target.layers)


def described(folder: Path, kind: str) -> tuple[contents.Description, dict[str, Tensor]]:
    """What a folder holds, and its tensors under our names. Raises DecodingError where it holds no head of this kind."""
    contents.read_config(folder, contents.TITLES[kind])
    tensors = read(folder, contents.TITLES[kind])
    if "t2d" in tensors and "d2t" not in tensors and not bool(tensors["t2d"].all()):
        reached = tensors["t2d"].nonzero().flatten()
        tensors["d2t"] = reached - torch.arange(len(reached))
    if (file := folder / contents.MASK_EMBEDDING).is_file():
        stored = torch.load(file, map_location="cpu", weights_only=True)
        tensors["mask_embedding"] = (stored["embedding"] if isinstance(stored, dict) else stored).flatten()
    found = contents.describe(folder, kind, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    named = {found.name(name): tensor for name, tensor in tensors.items()}
    return found, {name: named[name].reshape(shape) for name, shape in (found.shapes or {}).items()}


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
            f"{folder}: no {title} there that can be read ({kind}{reason}); check its config.json and its files"
        ) from error


class Checkpoint(ABC):
    """A head that is kept as config.json and model.safetensors."""

    kind: ClassVar[str]
    """A key of `contents.TITLES`."""
    title: ClassVar[str]
    """What its folder holds, e.g. "Medusa heads"."""
    config_class: ClassVar[type[PreTrainedConfig]]

    @abstractmethod
    def __init__(self, config: Any, tensors: dict[str, Tensor], target: CachedModel) -> None:
        """`tensors`: see `shapes`; they take the target's device and precision. Raises DecodingError where they do not
        fit.
        """

    @classmethod
    def shapes(cls, config: Any) -> Shapes:
        """Of the tensors that a head with this configuration has."""
        return contents.SHAPES[cls.kind](config)

    @classmethod
    @abstractmethod
    def random_tensors(cls, config: Any, seed: int, deviation: float = 0.02) -> dict[str, Tensor]:
        """Weights of an untrained head; a reduced vocabulary is the target's first tokens."""

    @classmethod
    def save(cls, folder: Path, config: Any, tensors: dict[str, Tensor]) -> None:
        """Write config.json and model.safetensors (fp32)."""
        extras = contents.EXTRAS.get(cls.kind, lambda _: {})(config)
        write(folder, config, tensors, cls.shapes(config) | {name: extras[name] for name in tensors if name in extras})

    @classmethod
    def load(cls, folder: Path, target: CachedModel) -> Self:
        """Read a head's folder, in any of the `heads.layouts`, for this target. Raises DecodingError where it holds none that
        fits.
        """
        with reading(folder, cls.title):
            found, tensors = described(folder, cls.kind)
            try:
                if wrong := contents.fault(found, cls.kind, sizes_of(target)):
                    raise DecodingError(wrong)
                return cls(cls.configured(found.config, target), tensors, target)
            except DecodingError as error:
                raise DecodingError(f"{folder}: {error}") from error

    @classmethod
    def configured(cls, keys: dict[str, Any], target: CachedModel) -> Any:
        """The configuration with these keys."""
        return cls.config_class.from_dict(keys)

    def check(self, config: Any, tensors: dict[str, Tensor], target: CachedModel) -> None:
        """Raise DecodingError for a head of another target, or one whose tensors do not fit its configuration."""
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if wrong := contents.misfit(self.kind, config, shapes, sizes_of(target)):
            raise DecodingError(wrong)


def faults(tensors: dict[str, Tensor], shapes: Shapes) -> str:
    """What is missing, superfluous or of another shape; empty when all is right."""
    return of.faults({name: tuple(tensor.shape) for name, tensor in tensors.items()}, shapes)


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
    if wrong := contents.vocabulary_fault(drafted.tolist(), vocabulary, name):
        raise DecodingError(wrong)
