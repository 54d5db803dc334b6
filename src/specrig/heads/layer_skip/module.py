"""Which layers a target leaves out when it drafts for itself: what the search found, or an even spread.

Checkpoint: config.json of model type "layer_skip" with `num_hidden_layers` (of the target) and `skipped`, the numbers
of the layers that are left out, from 0. The search also writes model.safetensors with what it measured; only
config.json is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import PreTrainedConfig

from specrig.heads.checkpoint import reading
from specrig.runtime.types import DecodingError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from specrig.runtime.model import CachedModel


def spread(layers: int, share: float) -> list[int]:
    """The numbers of `share` of the layers, evenly spaced, the first and the last kept: what surrounds them matters
    most.

    Example: half of 8 layers -> 1, 3, 4, 6. Of fewer than three layers none can be left out.
    """
    inner = max(layers - 2, 0)
    count = min(round(share * layers), inner)
    return sorted({1 + int((at + 0.5) * inner / count) for at in range(count)})


def initialise(folder: Path, target: Any, seed: int) -> None:
    """Write an even spread of half the layers for a target with this configuration."""
    layers = target.get_text_config(decoder=True).num_hidden_layers
    save(folder, layers, spread(layers, 0.5))


def save(folder: Path, layers: int, skipped: Sequence[int]) -> None:
    """Write config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    config = PreTrainedConfig(num_hidden_layers=layers, skipped=list(skipped))
    config.model_type = "layer_skip"
    config.save_pretrained(folder)


def load(folder: Path, target: CachedModel) -> list[int]:
    """The layers to leave out. Raises DecodingError where the folder does not say, or was written for another target."""
    if not (folder / "config.json").is_file():
        raise DecodingError(f"{folder}: no layer_skip there (no config.json)")
    with reading(folder, "layer_skip"):
        config = PreTrainedConfig.from_pretrained(folder)
    skipped: list[int] = getattr(config, "skipped", [])
    if not isinstance(skipped, list) or not skipped or not all(isinstance(layer, int) for layer in skipped):
        raise DecodingError(f"{folder}/config.json: `skipped` is not a list of the layers to leave out")
    layers = getattr(config, "num_hidden_layers", None)
    if layers != target.layers:
        raise DecodingError(f"{folder}: found for a target of {layers} layers, this one has {target.layers}")
    return skipped
