"""How far each layer attends: to all of the text, to a window of the last positions, or to a token's own chunk.

It is read from the model's config, as transformers reads it for its own `generate`. A window counts positions of the
text, not slots of the cache: two siblings of a tree have one position, and rows of a batch begin at different slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from specrig.runtime.types import DecodingError


@dataclass(frozen=True, slots=True)
class AttentionPattern:
    """What one layer attends to: everything before, the last `size` positions (its own included), or its chunk."""

    kind: Literal["full_attention", "sliding_attention", "chunked_attention"] = "full_attention"
    size: int = 0

    def visible(self, queries: Tensor, keys: Tensor) -> Tensor:
        """`[..., n, m]`: whether positions `queries` `[..., n, 1]` attend as far as `keys` `[..., 1, m]`. Not causal."""
        if self.kind == "sliding_attention":
            return queries - keys < self.size
        return queries // self.size == keys // self.size

    def hides_any(self, end: int) -> bool:
        """Whether it hides any of `end` positions."""
        return self.kind != "full_attention" and end > self.size


FULL = AttentionPattern()


def layer_patterns(config: Any) -> list[AttentionPattern]:
    """The pattern of every layer, by a decoder's config. Raises DecodingError for a layer without keys and values."""
    count = config.num_hidden_layers
    # Of a config whose layers differ in their sizes too, each layer has one of its own.
    own = list(getattr(config, "per_layer_config", None) or [config] * count)
    types = getattr(config, "layer_types", None) or [_only_type(layer) for layer in own]
    return [_pattern(name, layer) for name, layer in zip(types, own, strict=False)]


def _only_type(config: Any) -> str:
    if getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True):
        return "sliding_attention"
    return "full_attention" if getattr(config, "attention_chunk_size", None) is None else "chunked_attention"


def _pattern(layer_type: str, config: Any) -> AttentionPattern:
    if layer_type == "full_attention":
        return FULL
    if layer_type == "sliding_attention":
        return AttentionPattern("sliding_attention", int(config.sliding_window))
    if layer_type == "chunked_attention":
        return AttentionPattern("chunked_attention", int(config.attention_chunk_size))
    raise DecodingError(
        f"layers of type {layer_type} keep more than keys and values of each token, which cannot be rolled back when "
        "drafts are rejected"
    )
