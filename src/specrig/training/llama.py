"""A Llama for training. It computes the same function as `transformers.LlamaForCausalLM`, with fewer and larger
operations.

Query, key and value are one matrix, gate and up are one matrix, and the output head is the embedding. Saved in Hugging
Face format under Hugging Face's names; a test holds the two forwards equal. Shapes: B sequences, T tokens, D hidden, V
vocabulary.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from specrig.heads.layer import apply_rotary
from specrig.training.recipe import Shape

EPSILON = 1e-5
ROPE_BASE = 10_000.0


class Layer(nn.Module):
    """One decoder layer: attention and SwiGLU, each behind an RMS norm and added to the residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        D, intermediate = shape.hidden, shape.intermediate
        self.heads, self.head_size = shape.heads, D // shape.heads
        self.attention_norm = nn.Parameter(torch.ones(D))
        self.qkv = nn.Parameter(torch.empty(3 * D, D))
        self.out = nn.Parameter(torch.empty(D, D))
        self.mlp_norm = nn.Parameter(torch.ones(D))
        self.gate_up = nn.Parameter(torch.empty(2 * intermediate, D))
        self.down = nn.Parameter(torch.empty(D, intermediate))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """`[B, T, D]` -> `[B, T, D]`; `cos` and `sin` are `[T, head size]`."""
        B, T, D = x.shape
        # Attention: queries, keys and values from one product, [B, T, 3D] -> three of [B, heads, T, head size].
        normed = F.rms_norm(x, (D,), self.attention_norm, EPSILON)
        q, k, v = F.linear(normed, self.qkv).view(B, T, 3, self.heads, self.head_size).permute(2, 0, 3, 1, 4)
        q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.linear(mixed.transpose(1, 2).reshape(B, T, D), self.out)
        # MLP: SwiGLU.
        gate, up = F.linear(F.rms_norm(x, (D,), self.mlp_norm, EPSILON), self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down)


class Llama(nn.Module):
    """The model. `forward` gives the state after the final norm; `logits` applies the tied head."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape, vocabulary: int, layers: int | None = None) -> None:
        super().__init__()
        self.shape, self.vocabulary = shape, vocabulary
        self.embedding = nn.Parameter(torch.empty(vocabulary, shape.hidden))
        self.layers = nn.ModuleList(Layer(shape) for _ in range(layers or shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.hidden))
        # Rotary tables [context, head size]: position times frequency, the same for both halves of a head.
        head = shape.hidden // shape.heads
        frequency = ROPE_BASE ** (-torch.arange(0, head, 2).float() / head)
        angle = torch.outer(torch.arange(shape.context).float(), frequency).repeat(1, 2)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def initialise(self, seed: int) -> Llama:
        """Draw the weights: normal with deviation 0.02 for the embedding, 1/sqrt(width) for matrices, outputs at zero."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                continue
            last = name.rsplit(".", 1)[-1]
            deviation = 0.02 if last == "embedding" else 0.0 if last in ("out", "down") else parameter.shape[1] ** -0.5
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * deviation)
        return self

    @torch.no_grad()
    def grow(self, layers: int) -> None:
        """Deepen the model to `layers` layers without changing its function.

        Each new layer is a copy of the one below it whose output matrices are zero, so it adds nothing to the residual
        stream yet. Stacking as in "Stacking Your Transformers" (arXiv:2405.15319); the zero outputs are this project's.
        """
        old, grown, last = list(self.layers), [], -1
        for index in range(layers):
            source = index * len(old) // layers
            layer = old[source] if source != last else copy.deepcopy(old[source])
            if source == last:
                assert isinstance(layer, Layer)
                layer.out.zero_()
                layer.down.zero_()
            grown.append(layer)
            last = source
        self.layers = nn.ModuleList(grown)

    def compile_layers(self, enabled: bool) -> None:
        """Let torch.compile fuse each layer's operations, where enabled; layers of one shape share one compilation."""
        for layer in self.layers if enabled else ():
            layer.compile()

    def forward(self, tokens: Tensor) -> Tensor:
        """`[B, T]` int64 -> `[B, T, D]`, the state after the final norm."""
        x = F.embedding(tokens, self.embedding)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.rms_norm(x, (self.shape.hidden,), self.norm, EPSILON)

    def logits(self, hidden: Tensor, vocabulary: Tensor | None = None) -> Tensor:
        """`[..., D]` -> `[..., V]`, or of the tokens `vocabulary` `[Vd]` alone `[..., Vd]`."""
        return F.linear(
            hidden, self.embedding if vocabulary is None else self.embedding[vocabulary.to(self.embedding.device)]
        )


def save(model: Llama, folder: Path, ends: tuple[int, ...], drafted: Tensor | None = None) -> None:
    """Write config.json, generation_config.json and model.safetensors (fp32) for `AutoModelForCausalLM`.

    ends: the tokens that end a text. drafted: the tokens that it drafts among, where these are not all
    (`specrig.drafted` in config.json).
    """
    eos = ends[0]
    shape = model.shape
    tensors: dict[str, Tensor] = {"model.embed_tokens.weight": model.embedding, "model.norm.weight": model.norm}
    for index, layer in enumerate(model.layers):
        assert isinstance(layer, Layer)
        prefix = f"model.layers.{index}."
        q, k, v = layer.qkv.chunk(3)
        gate, up = layer.gate_up.chunk(2)
        tensors |= {
            f"{prefix}input_layernorm.weight": layer.attention_norm,
            f"{prefix}self_attn.q_proj.weight": q,
            f"{prefix}self_attn.k_proj.weight": k,
            f"{prefix}self_attn.v_proj.weight": v,
            f"{prefix}self_attn.o_proj.weight": layer.out,
            f"{prefix}post_attention_layernorm.weight": layer.mlp_norm,
            f"{prefix}mlp.gate_proj.weight": gate,
            f"{prefix}mlp.up_proj.weight": up,
            f"{prefix}mlp.down_proj.weight": layer.down,
        }
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": eos,
        "eos_token_id": eos if len(ends) == 1 else list(ends),
        "pad_token_id": eos,
        "head_dim": shape.hidden // shape.heads,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.context,
        "mlp_bias": False,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.heads,
        "rms_norm_eps": EPSILON,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_BASE},
        "tie_word_embeddings": True,
        "dtype": "float32",
        "use_cache": True,
        "vocab_size": model.vocabulary,
    }
    config |= {} if drafted is None else {"specrig": {"drafted": drafted.tolist()}}
    generation = {"bos_token_id": eos, "eos_token_id": config["eos_token_id"], "pad_token_id": eos, "do_sample": False}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    save_file(
        {name: tensor.detach().float().cpu().contiguous().clone() for name, tensor in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
