"""A decoder layer of a head while it trains. Shapes: B rows, T tokens, D hidden, H heads, d a head's width."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from specrig.heads.layer import apply_rotary


def normal(rows: int, columns: int, generator: torch.Generator) -> nn.Parameter:
    """A matrix to learn, normal with deviation 1/sqrt(columns)."""
    return nn.Parameter(torch.randn(rows, columns, generator=generator) * columns**-0.5)


class TrainedLayer(nn.Module):
    """A layer with a target's sizes. Keys and values are one matrix, gate and up are one matrix; the optimiser splits
    them by name. Output matrices begin as zero, so at first the layer adds nothing.
    """

    def __init__(
        self, config: Any, reads: int, generator: torch.Generator, *, input_norm: bool = False, head_norms: bool = False
    ) -> None:
        """reads: width of what attention reads. input_norm: it norms that itself. head_norms: it norms each query and
        key (Qwen3).
        """
        super().__init__()
        D, self.heads, self.key_heads = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        self.head_size, self.eps = config.head_dim, config.rms_norm_eps
        self.q = normal(self.heads * self.head_size, reads, generator)
        self.kv = normal(2 * self.key_heads * self.head_size, reads, generator)
        self.out = nn.Parameter(torch.zeros(D, self.heads * self.head_size))
        self.mlp_norm = nn.Parameter(torch.ones(D))
        self.gate_up = normal(2 * config.intermediate_size, D, generator)
        self.down = nn.Parameter(torch.zeros(D, config.intermediate_size))
        self.input_norm = nn.Parameter(torch.ones(reads)) if input_norm else None
        self.q_norm = nn.Parameter(torch.ones(self.head_size)) if head_norms else None
        self.k_norm = nn.Parameter(torch.ones(self.head_size)) if head_norms else None

    def normed(self, x: Tensor) -> Tensor:
        """What attention reads of the residual stream `[B, T, D]`, for a layer that norms it itself."""
        return F.rms_norm(x, x.shape[-1:], self.input_norm, self.eps)

    def queries(self, read: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Of what attention reads `[B, T, R]`: `[B, H, T, d]`. cos, sin: of the positions, `[T, d]` or `[B, 1, T, d]`."""
        q = self._split(F.linear(read, self.q), self.heads, self.q_norm)
        return apply_rotary(q, cos, sin)

    def keys_values(self, read: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Likewise, keys and values of each query head: `[B, H, T, d]`."""
        keys, values = F.linear(read, self.kv).chunk(2, -1)
        shared = self.heads // self.key_heads
        k = apply_rotary(self._split(keys, self.key_heads, self.k_norm), cos, sin)
        v = self._split(values, self.key_heads, None)
        return k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)

    def _split(self, x: Tensor, heads: int, norm: Tensor | None) -> Tensor:
        x = x.view(*x.shape[:2], heads, self.head_size).transpose(1, 2)
        return x if norm is None else F.rms_norm(x, (self.head_size,), norm, self.eps)

    def forward(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """The residual stream `[B, T, D]` after attention and MLP. mask: True where a query sees a key; None: causal."""
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = x + F.linear(mixed.transpose(1, 2).flatten(2), self.out)
        gate, up = F.linear(F.rms_norm(x, x.shape[-1:], self.mlp_norm, self.eps), self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down)

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The weights under a checkpoint's names, of its layer `name`."""
        k, v = self.kv.chunk(2)
        gate, up = self.gate_up.chunk(2)
        norms = {
            "input_layernorm": self.input_norm, "post_attention_layernorm": self.mlp_norm,
            "self_attn.q_norm": self.q_norm, "self_attn.k_norm": self.k_norm,
        }  # fmt: skip
        matrices = {
            "self_attn.q_proj": self.q, "self_attn.k_proj": k, "self_attn.v_proj": v, "self_attn.o_proj": self.out,
            "mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": self.down,
        }  # fmt: skip
        return {f"{name}.{part}.weight": tensor for part, tensor in (matrices | norms).items() if tensor is not None}
