"""A head that is a decoder layer: its sizes, from the target that it is made for, and its weights, from a checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import rotate_half

from specrig.heads.checkpoint import Shapes
from specrig.runtime.linear import Linear
from specrig.runtime.llama_model import Block

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
    layer has its own.
    """
    found = getattr(config, "rope_parameters", None) or {}
    if any(isinstance(part, dict) for part in found.values()):
        found = found.get("full_attention") or next(part for part in found.values() if isinstance(part, dict))
    kept = {name: value for name, value in found.items() if name != "partial_rotary_factor"}
    return {"rope_type": "default", "rope_theta": 10_000.0} | kept


def layer_shapes(config: Any, name: str, reads: int) -> Shapes:
    """Of the decoder layer `name`, whose attention projects vectors of width `reads`."""
    D, intermediate = config.hidden_size, config.intermediate_size
    width = getattr(config, "head_dim", None) or D // config.num_attention_heads
    queries, keys = config.num_attention_heads * width, config.num_key_value_heads * width
    return {
        f"{name}.self_attn.q_proj.weight": (queries, reads),
        f"{name}.self_attn.k_proj.weight": (keys, reads),
        f"{name}.self_attn.v_proj.weight": (keys, reads),
        f"{name}.self_attn.o_proj.weight": (D, queries),
        f"{name}.mlp.gate_proj.weight": (intermediate, D),
        f"{name}.mlp.up_proj.weight": (intermediate, D),
        f"{name}.mlp.down_proj.weight": (D, intermediate),
        f"{name}.post_attention_layernorm.weight": (D,),
    }


def layer_of(weights: dict[str, Tensor], prefix: str, *, whole: bool = False) -> Block:
    """The decoder layer `prefix` of a checkpoint. whole: with the norms of its input and, where it has them, of its
    queries and keys; else the head makes what attention reads.
    """

    def fused(*names: str) -> Linear:
        return Linear(torch.cat([weights[f"{prefix}.{name}.weight"] for name in names]))

    return Block(
        norm_1=weights[f"{prefix}.input_layernorm.weight"] if whole else None,
        qkv=fused(*(f"self_attn.{part}_proj" for part in "qkv")),
        q_norm=weights.get(f"{prefix}.self_attn.q_norm.weight"),
        k_norm=weights.get(f"{prefix}.self_attn.k_norm.weight"),
        out=fused("self_attn.o_proj"),
        norm_2=weights[f"{prefix}.post_attention_layernorm.weight"],
        gate_up=fused("mlp.gate_proj", "mlp.up_proj"),
        down=fused("mlp.down_proj"),
    )


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding in Llama's half-split layout (Su et al. 2021; arXiv:2104.09864, section 3.4)."""
    return x * cos.to(x.dtype) + rotate_half(x) * sin.to(x.dtype)
