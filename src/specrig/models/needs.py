"""What an architecture needs to be speculated with, read off its config.json before any weight is read. No torch here.

Rejected drafts are rolled back by cutting keys and values, and a tree's siblings stand at one position. So every layer
must be attention over keys and values of single tokens, and positions must come from outside. What no key tells is
found when the model is loaded (`runtime.agreement`), which asks the model itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

LAYER_KEYS = ("layer_types", "layers_block_type", "block_types", "_block_types", "hybrid_override_pattern")
"""Keys that name each layer's kind, the first that is there counts."""
ATTENTION = {"full_attention", "sliding_attention", "chunked_attention", "attention", "moe", "mlp", "*", "-", "E"}
"""Kinds of layers that keep keys and values, or nothing (single letters: in a pattern such as `M*M-`)."""
STATE = re.compile(
    r"mamba|ssm_|state_size|conv_kernel|conv_l_cache|conv1d|_conv_|lru_width|linear_(num|key|attn)|lstm|rescale_every"
)
"""In the name of a key that sizes or treats a recurrent state."""
HEADS = (
    "num_attention_heads n_head n_heads num_heads attention_heads num_attention_groups encoder_attention_heads".split()
)
POSITIONS = re.compile(r"position|rope|rotary|n_ctx|max_seq_len|max_target_length")
"""In the name of a key that says how positions enter, or how many there are."""


def recurrent(config: dict[str, Any]) -> str | None:
    """Why drafts cannot be rolled back in a model with this config.json; None: as far as it shows they can."""
    text = _text(config)
    if "vocab_size" not in text:
        return None  # too little of a config to tell anything
    kinds = next((text[key] for key in LAYER_KEYS if text.get(key)), None)
    if kinds is not None:
        others = dict.fromkeys(str(kind) for kind in _flat(kinds) if kind not in ATTENTION)
        evidence = f"layers of type {', '.join(others)}" if others else ""
    else:
        evidence = next(
            (f"{key} in its config" for key, value in text.items() if value and STATE.search(key.lower())), ""
        )
        if not any(text.get(name) for name in HEADS):
            evidence = evidence or "no attention heads in its config"
    if not evidence:
        return None
    return (
        f"it keeps more than keys and values of each token ({evidence}), which cannot be rolled back when drafts are "
        "rejected; choose a model with attention in every layer"
    )


def unmet(config: dict[str, Any]) -> str | None:
    """Why the native engine cannot decode with a model of this config.json; None: as far as it shows it can."""
    text = _text(config)
    if (reason := recurrent(config)) is not None or "vocab_size" not in text:
        return reason
    named = text | (text.get("attn_config") or {})
    if any("alibi" in key and value for key, value in named.items()):
        how = "its attention counts distances along the cache (ALiBi)"
    elif not any(map(POSITIONS.search, named)):
        how = "its config names no positions, so it counts them along the cache itself"
    elif "local" in _flat(text.get("attention_types") or text.get("attention_layers") or ()):
        how = "its own code cuts windows along the cache (local attention)"
    else:
        return None
    return (
        f"{how}, where a tree's siblings stand behind one another; choose a model that takes its positions from "
        "outside (rotary, learned)"
    )


def _text(config: dict[str, Any]) -> dict[str, Any]:
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def _flat(kinds: Any) -> Iterator[Any]:
    """The leaves of nested lists; of a string its letters."""
    for kind in kinds:
        if isinstance(kind, list | tuple):
            yield from _flat(kind)
        else:
            yield kind
