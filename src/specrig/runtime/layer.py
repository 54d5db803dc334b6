"""A decoder layer: of a model that decodes, of a head, and of a head while it trains.

Its attention is given by the caller, which knows the positions, the keys of the context and who sees whom: `LlamaModel`
has a cache, training has the tokens of a text side by side. Shapes: B rows, n tokens, D hidden, H query heads, K key
heads, d a head's width, R what attention reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)

from specrig.runtime.linear import Linear, add_product
from specrig.runtime.pointwise import Arithmetic, swiglu
from specrig.runtime.types import DecodingError

Product = Callable[[Tensor], Tensor]
"""A matrix that multiplies: a `Linear`, or a module of torch while it learns."""
Attention = Callable[[Tensor, Tensor], Tensor]
"""Queries and keys side by side `[B, n, H + K, d]`, not rotated yet, and values `[B, n, K, d]` -> what the queries see, `[B,
n, H d]`.
"""


class DecoderLayer(nn.Module):
    """Attention and SwiGLU, each behind an RMS norm and added to the residual stream, as in a Llama or Qwen3.

    Projections that read the same input are one product: `qkv` makes queries, keys and values, `gate_up` gate and up.
    """

    def __init__(
        self,
        heads: int,
        head_width: int,
        eps: float,
        *,
        norm_1: Tensor | None,
        qkv: Any,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        out: Any,
        norm_2: Tensor,
        gate_up: Any,
        down: Any,
    ) -> None:
        """heads: H. norm_1: None where `forward` is given what attention reads. q_norm, k_norm: of each query and key (Qwen3)."""
        super().__init__()
        self.heads, self.head_width, self.eps = heads, head_width, eps
        self.norm_1, self.qkv, self.q_norm, self.k_norm, self.out = norm_1, qkv, q_norm, k_norm, out
        self.norm_2, self.gate_up, self.down = norm_2, gate_up, down

    @classmethod
    def of(
        cls,
        weights: Mapping[str, Tensor],
        prefix: str,
        config: Any,
        *,
        whole: bool = True,
        few_rows: bool = True,
    ) -> DecoderLayer:
        """The layer whose weights' names begin with `prefix`, as transformers and checkpoints name them, of a model with
        this configuration.

        whole: with the norms of its input and, where it has them, of its queries and keys; else the head makes what
        attention reads. few_rows: see `Linear`. Raises DecodingError where some of the projections that are one product have
        a bias.
        """

        def fused(*names: str) -> Linear:
            biases = [weights[name] for name in (f"{prefix}{name}.bias" for name in names) if name in weights]
            if biases and len(biases) < len(names):
                raise DecodingError(f"{prefix.rstrip('.')}: some of {', '.join(names)} have a bias, others have none")
            matrices = [weights[f"{prefix}{name}.weight"] for name in names]
            weight = torch.cat(matrices) if len(matrices) > 1 else matrices[0]
            return Linear(weight, torch.cat(biases) if biases else None, few_rows=few_rows)

        heads = config.num_attention_heads
        return cls(
            heads,
            getattr(config, "head_dim", None) or config.hidden_size // heads,
            config.rms_norm_eps,
            norm_1=weights[f"{prefix}input_layernorm.weight"] if whole else None,
            qkv=fused(*(f"self_attn.{part}_proj" for part in "qkv")),
            q_norm=weights.get(f"{prefix}self_attn.q_norm.weight"),
            k_norm=weights.get(f"{prefix}self_attn.k_norm.weight"),
            out=fused("self_attn.o_proj"),
            norm_2=weights[f"{prefix}post_attention_layernorm.weight"],
            gate_up=fused("mlp.gate_proj", "mlp.up_proj"),
            down=fused("mlp.down_proj"),
        )

    def project(self, x: Tensor, reads: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Queries and keys, and values, as `Attention` takes them; arguments as for `forward`."""
        if reads is None:
            reads = F.rms_norm(x, (x.shape[-1],), self.norm_1, self.eps)
        H, d = self.heads, self.head_width
        qkv = self.qkv(reads).unflatten(-1, (-1, d))  # [B, n, H + 2K, d]
        both = (H + qkv.shape[-2]) // 2  # H + K
        qk, v = qkv[..., :both, :], qkv[..., both:, :]
        if self.q_norm is not None and self.k_norm is not None:
            q = F.rms_norm(qk[..., :H, :], (d,), self.q_norm, self.eps)
            k = F.rms_norm(qk[..., H:, :], (d,), self.k_norm, self.eps)
            qk = torch.cat((q, k), -2)
        return qk, v

    def forward(
        self, x: Tensor, attention: Attention, reads: Tensor | None = None, swiglu: Arithmetic = swiglu
    ) -> Tensor:
        """The residual stream x `[B, n, D]` behind the layer; on a GPU that decodes it may be overwritten.

        reads: `[B, n, R]`, what attention reads, where that is not x after the norm (EAGLE's heads).
        """
        x = add_product(x, self.out, attention(*self.project(x, reads)))
        return add_product(x, self.down, swiglu(self.gate_up(F.rms_norm(x, (x.shape[-1],), self.norm_2, self.eps))))
