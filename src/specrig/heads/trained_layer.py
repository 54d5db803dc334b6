"""A head's decoder layer while it trains: its weights, and its attention without a cache.

Shapes: B rows, T tokens, D hidden, H query heads, K key heads, d a head's width, R what attention reads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from specrig.heads.shapes import head_width
from specrig.runtime.layer import DecoderLayer
from specrig.runtime.pointwise import rotate, signed

Tables = tuple[Tensor, Tensor]
"""Cosines and signed sines of positions, as `pointwise.rotate` reads them."""


def matrix(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A product to learn, `[out, in]` and `[out]`."""
    found = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    found.weight = nn.Parameter(weight)
    if bias is not None:
        found.bias = nn.Parameter(bias)
    return found


def normal(rows: int, columns: int, generator: torch.Generator) -> nn.Linear:
    """One with weights that are normal with deviation 1/sqrt(columns)."""
    return matrix(torch.randn(rows, columns, generator=generator) * columns**-0.5)


class SideBySide(nn.ModuleList):
    """Products that read the same input, each learnt by itself; decoding has one for all."""

    def forward(self, x: Tensor) -> Tensor:
        """`[..., R]` -> what they make, joined."""
        return torch.cat([product(x) for product in self], -1)


def untrained_layer(
    config: Any, reads: int, generator: torch.Generator, *, input_norm: bool = False, head_norms: bool = False
) -> DecoderLayer:
    """A layer with a target's sizes that learns. Output matrices begin as zero, so at first it adds nothing.

    reads: R. input_norm: it norms that itself. head_norms: it norms each query and key (Qwen3).
    """
    D, intermediate, d = config.hidden_size, config.intermediate_size, head_width(config)
    H, K = config.num_attention_heads, config.num_key_value_heads

    def ones(width: int, there: bool = True) -> Any:
        return nn.Parameter(torch.ones(width)) if there else None

    return DecoderLayer(
        H,
        d,
        config.rms_norm_eps,
        norm_1=ones(reads, input_norm),
        qkv=SideBySide(normal(heads * d, reads, generator) for heads in (H, K, K)),
        q_norm=ones(d, head_norms),
        k_norm=ones(d, head_norms),
        out=matrix(torch.zeros(D, H * d)),
        norm_2=ones(D),
        gate_up=SideBySide(normal(intermediate, D, generator) for _ in range(2)),
        down=matrix(torch.zeros(D, intermediate)),
    )


def layer_tensors(layer: DecoderLayer, name: str) -> dict[str, Tensor]:
    """The weights of a layer that learns under a checkpoint's names, of its layer `name`."""
    (q, k, v), (gate, up) = layer.qkv, layer.gate_up
    products = {
        "self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v, "self_attn.o_proj": layer.out,
        "mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": layer.down,
    }  # fmt: skip
    norms = {
        "input_layernorm": layer.norm_1, "post_attention_layernorm": layer.norm_2,
        "self_attn.q_norm": layer.q_norm, "self_attn.k_norm": layer.k_norm,
    }  # fmt: skip
    found = {part: product.weight for part, product in products.items()} | norms
    return {f"{name}.{part}.weight": tensor for part, tensor in found.items() if tensor is not None}


def tables(rotary: nn.Module, positions: Tensor) -> Tables:
    """Of positions `[T]` or `[B, T]`: `[T or B T, 1, d]` each."""
    cos, sin = rotary(torch.empty(0, device=positions.device), positions.view(-1, positions.shape[-1]))
    cos, sin = (table.view(*positions.shape, 1, -1) for table in (cos, signed(sin)))
    return cos, sin


def rotated(qk: Tensor, at: Tables) -> Tensor:
    """Queries or keys `[B, T, heads, d]` at these positions."""
    return rotate(qk, *(table.to(qk.dtype) for table in at))


def queries_keys(qk: Tensor, v: Tensor, at: Tables) -> tuple[Tensor, Tensor]:
    """Of what `layer.Attention` is given queries `[B, T, H, d]` and keys `[B, T, K, d]`, rotated."""
    keys = v.shape[2]
    q, k = rotated(qk, at).split([qk.shape[2] - keys, keys], 2)
    return q, k


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """What queries `[B, T, H, d]` see of keys and values `[B, S, K, d]`: `[B, T, H d]`. mask: True where a query sees a
    key; None: causal.
    """
    shared = q.shape[2] // k.shape[2]
    k, v = (x.transpose(1, 2).repeat_interleave(shared, 1) for x in (k, v))
    mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=mask, is_causal=mask is None)
    return mixed.transpose(1, 2).flatten(2)
