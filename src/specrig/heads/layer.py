"""A head that is a decoder layer: its sizes, from the target that it is made for."""

from __future__ import annotations

from typing import Any

from specrig.heads.shapes import ROTARY_BY_LENGTH

_TAKEN_OVER = (
    "hidden_size", "num_attention_heads", "head_dim", "vocab_size", "max_position_embeddings", "bos_token_id", "eos_token_id",
    "pad_token_id", "tie_word_embeddings", "dtype",
)  # fmt: skip


def layer_like(text: Any) -> dict[str, Any]:
    """Settings for the `LlamaConfig` of a layer with the sizes of a target. text: the target's configuration.

    What a target of another architecture lacks is Llama's: rotary positions, as many key heads as heads, an inner width
    of 4 D.
    """
    found = {name: getattr(text, name) for name in _TAKEN_OVER if getattr(text, name, None) is not None}
    sizes = {
        "intermediate_size": _first(text, "intermediate_size", "n_inner") or 4 * text.hidden_size,
        "num_key_value_heads": _first(text, "num_key_value_heads") or text.num_attention_heads,
        "rms_norm_eps": _first(text, "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon") or 1e-6,
    }
    return found | sizes | {"rope_parameters": _rotary(text)}


def mask_token(config: Any) -> int:
    """The token that marks a position to draft, for a target with this configuration: the last that ends no text,
    mostly padding or a reserved one.
    """
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    return next(token for token in reversed(range(config.vocab_size)) if token not in ends)


def _first(config: Any, *names: str) -> Any:
    """The first of these settings that the configuration has."""
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)


def _rotary(config: Any) -> dict[str, Any]:
    """The target's rotary positions, over the whole width of a head; those of its full attention where each type of
    layer has its own. Scalings that depend on the text's length are left out.
    """
    found = getattr(config, "rope_parameters", None) or {}
    if any(isinstance(part, dict) for part in found.values()):
        found = found.get("full_attention") or next(part for part in found.values() if isinstance(part, dict))
    kept = {name: value for name, value in found.items() if name != "partial_rotary_factor"}
    if kept.get("rope_type") in ROTARY_BY_LENGTH:
        kept = {name: value for name, value in kept.items() if name == "rope_theta"}
    return {"rope_type": "default", "rope_theta": 10_000.0} | kept
