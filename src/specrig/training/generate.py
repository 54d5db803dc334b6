"""Sampling from the target during training: continuations of training prompts with the logits they were drawn from.

A plain batched loop with a key/value cache, for training data only; measured decoding lives in `specrig.decoding`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from specrig.training.llama import EPSILON, Layer, Llama, rotate


@torch.no_grad()
def continuations(model: Llama, prompts: Sequence[list[int]], width: int, temperatures: Sequence[float], seed: int) -> Tensor:
    """Continue every prompt until it is `width` tokens long: `[B, width]` int64 on the CPU.

    Row b samples at `temperatures[b % len(temperatures)]` (0: greedy). End-of-text does not stop a row: what follows is a new text, as in
    training. From the end of the shortest prompt on all rows advance together, one token a step; a row whose prompt is longer takes its
    next token from the prompt instead of sampling. Every prompt must be shorter than `width`. Runs in the weights' own precision.
    """
    where, precision = model.embedding.device, model.embedding.dtype
    generator = torch.Generator(where).manual_seed(seed)
    shape = model.shape
    B, shortest = len(prompts), min(map(len, prompts))
    out = torch.full((B, width), -1)
    for row, prompt in enumerate(prompts):
        out[row, : len(prompt)] = torch.tensor(prompt)
    out = out.to(where)
    keys = torch.zeros(shape.layers, B, shape.heads, width, shape.hidden // shape.heads, device=where, dtype=precision)
    values = torch.zeros_like(keys)
    heat = torch.tensor([temperatures[row % len(temperatures)] for row in range(B)], device=where)
    start = 0
    for position in range(shortest, width):
        # Run what the cache lacks: first the shortest prompt's length of every row, then one token a step. [B, n, D].
        hidden = _step(model, out[:, start:position], start, keys, values)
        logits = model.logits(hidden[:, -1]).float()
        # The Gumbel-max trick: argmax of logits + T · noise is a draw at temperature T, and plain argmax at T = 0. [B].
        noise = -torch.empty_like(logits).exponential_(generator=generator).log()
        drawn = (logits + heat[:, None] * noise).argmax(-1)
        # -1 marks what no prompt has filled.
        out[:, position] = torch.where(out[:, position] < 0, drawn, out[:, position])
        start = position
    return out.cpu()


def _step(model: Llama, tokens: Tensor, start: int, keys: Tensor, values: Tensor) -> Tensor:
    """Forward of `[B, n]` tokens at positions `start ..`, which are added to the cache `[L, B, heads, T, head size]`."""
    B, n = tokens.shape
    end, D = start + n, model.shape.hidden
    x = F.embedding(tokens, model.embedding)
    cos, sin = model.cos[start:end], model.sin[start:end]
    for index, layer in enumerate(model.layers):
        assert isinstance(layer, Layer)
        normed = F.rms_norm(x, (D,), layer.attention_norm, EPSILON)
        q, k, v = F.linear(normed, layer.qkv).view(B, n, 3, layer.heads, layer.head_size).permute(2, 0, 3, 1, 4)
        keys[index, :, :, start:end] = rotate(k, cos, sin)
        values[index, :, :, start:end] = v
        mixed = F.scaled_dot_product_attention(
            rotate(q, cos, sin), keys[index, :, :, :end], values[index, :, :, :end], is_causal=n > 1
        )
        x = x + F.linear(mixed.transpose(1, 2).reshape(B, n, D), layer.out)
        gate, up = F.linear(F.rms_norm(x, (D,), layer.mlp_norm, EPSILON), layer.gate_up).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, layer.down)
    return F.rms_norm(x, (D,), model.norm, EPSILON)
