"""Tiny random models of the decoder-only architectures that transformers has, with windows of 8 where they have
windows.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

WINDOW = 8
VOCABULARY = 60
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
EXPERTS = {
    "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6, "head_dim": 4,
    "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "moe_intermediate_size": 24, "num_experts_per_tok": 2,
}  # fmt: skip
MAMBA = {
    "mamba_d_state": 4, "mamba_d_conv": 3, "mamba_expand": 2, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1,
    "use_mamba_kernels": False,
}  # fmt: skip
OLD_NAMES = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256}
PER_LAYER_INPUT = {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8}
QWEN_WINDOW = {"sliding_window": WINDOW, "use_sliding_window": True, "max_window_layers": 1}
SPECIAL_TOKENS = {f"{name}_token_id": at for at, name in enumerate(("pad", "cls", "sep", "bos", "eos"))}

RUN: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": WINDOW},
    "mixtral": {"sliding_window": WINDOW, **EXPERTS},
    "ministral": {"sliding_window": WINDOW},
    "ministral3": {"sliding_window": WINDOW},
    "qwen2": QWEN_WINDOW,
    "qwen2_moe": {**QWEN_WINDOW, **EXPERTS},
    "qwen3": QWEN_WINDOW,
    "qwen3_moe": {**QWEN_WINDOW, **EXPERTS},
    "gemma": {},
    "gemma2": {"sliding_window": WINDOW, "final_logit_softcapping": 3.0},
    "gemma3_text": {"sliding_window": WINDOW, "sliding_window_pattern": 2},
    "gemma3n_text": {
        "sliding_window": WINDOW, "num_hidden_layers": 5, "num_kv_shared_layers": 2, "intermediate_size": [48] * 5,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "activation_sparsity_pattern": [0.0] * 5, "laurel_rank": 4, **PER_LAYER_INPUT,
    },
    "gemma4_text": {
        "sliding_window": WINDOW, "num_hidden_layers": 4, "global_head_dim": 16, "num_global_key_value_heads": 1,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "full_attention"], **PER_LAYER_INPUT,
    },
    "gpt_oss": {"sliding_window": WINDOW, **EXPERTS},
    "phi": {"num_key_value_heads": 4},
    "phi3": {"sliding_window": WINDOW},
    "phimoe": {"sliding_window": WINDOW, **EXPERTS},
    "gpt2": {},
    "gpt_neox": {},
    "gptj": {**OLD_NAMES, "rotary_dim": 4},
    "gpt_bigcode": {**OLD_NAMES, "multi_query": True},
    "codegen": {**OLD_NAMES, "rotary_dim": 4},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "xglm": {"d_model": 32, "ffn_dim": 48, "attention_heads": 4, "num_layers": 3},
    "biogpt": {},
    "stablelm": {},
    "olmo": {},
    "olmo2": {},
    "olmo3": {"sliding_window": WINDOW, "num_hidden_layers": 4},
    "olmoe": EXPERTS,
    "cohere": {},
    "cohere2": {"sliding_window": WINDOW, "num_hidden_layers": 4},
    "starcoder2": {"sliding_window": WINDOW},
    "granite": {"logits_scaling": 4.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2},
    "granitemoe": EXPERTS,
    "smollm3": {"num_hidden_layers": 4, "no_rope_layer_interval": 2},
    "persimmon": {"num_key_value_heads": 4},
    "nemotron": {},
    "glm": {},
    "glm4": {},
    "glm4_moe": {**EXPERTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "exaone4": {"sliding_window": WINDOW, "num_hidden_layers": 4},
    "ernie4_5": {},
    "helium": {},
    "arcee": {},
    "apertus": {},
    "seed_oss": {},
    "diffllama": {"num_key_value_heads": 4},
    "dbrx": {
        "d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 256,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32},
    },
    "llama4_text": {"attention_chunk_size": WINDOW, "num_hidden_layers": 4, "intermediate_size_mlp": 48, **EXPERTS},
    "modernbert-decoder": {"local_attention": 2 * WINDOW, "num_hidden_layers": 4, **SPECIAL_TOKENS},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "minicpm3": LATENT,
    "falcon": {"multi_query": True, "alibi": False},
    "falcon-groups": {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False},
    "ctrl": {**OLD_NAMES, "dff": 48},
}  # fmt: skip
"""What runs, with what makes each tiny."""

STATE, ALIBI, WITHOUT_CACHE = "more than keys and values", "ALiBi", "no cache of keys and values"
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("names no positions", {"n_layer": 3, "n_head": 4}),
    "falcon-alibi": (ALIBI, {"model_type": "falcon", "alibi": True, "multi_query": False}),
    "mpt": (ALIBI, {"d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 256, "attn_config": {"alibi": True}}),
    "gpt_neo": ("local attention", {"attention_types": [[["global", "local"], 1]], "num_hidden_layers": 2, "window_size": WINDOW}),
    "openai-gpt": (WITHOUT_CACHE, OLD_NAMES),
    "mamba": (STATE, {"state_size": 4}),
    "mamba2": (STATE, {"state_size": 4, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8}),
    "falcon_mamba": (STATE, {"state_size": 4}),
    "rwkv": (STATE, {"attention_hidden_size": 32}),
    "jamba": (STATE, {**MAMBA, **EXPERTS, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4}),
    "bamba": (STATE, {**MAMBA, "attn_layer_indices": [1], "mamba_chunk_size": 8}),
    "zamba2": (
        STATE,
        {
            **MAMBA, "num_hidden_layers": 4, "n_mamba_heads": 8, "mamba_headdim": 8, "mamba_ngroups": 1, "num_key_value_heads": 4,
            "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        },
    ),
    "recurrent_gemma": (STATE, {"attention_window_size": WINDOW, "lru_width": 32}),
    "lfm2": (STATE, {"layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3, "block_ff_dim": 48}),
    "qwen3_next": (
        STATE,
        {
            **EXPERTS, "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
            "linear_value_head_dim": 8, "shared_expert_intermediate_size": 24,
        },
    ),
    "falcon_h1": (STATE, {**MAMBA, "mamba_d_ssm": 64, "mamba_chunk_size": 8}),
    "nemotron_h": (
        STATE,
        {
            "ssm_state_size": 4, "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 1, "chunk_size": 8,
            "hybrid_override_pattern": "M*M-", "num_hidden_layers": 4,
        },
    ),
    "granitemoehybrid": (STATE, {**MAMBA, **EXPERTS, "layer_types": ["mamba", "attention", "mamba"], "mamba_chunk_size": 8}),
    "minimax": (STATE, {**EXPERTS, "block_size": 8}),
    "deepseek_v32": (STATE, {**LATENT, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 4}),
}  # fmt: skip
"""What is refused: a word of the reason, and what makes it tiny."""


def config(name: str) -> Any:
    """transformers' configuration of the tiny model `name`, which is a model type unless it says otherwise."""
    own = dict(RUN[name] if name in RUN else REFUSED[name][1])
    kind = own.pop("model_type", name)
    usual = CONFIG_MAPPING[kind]()
    names = set(usual.to_dict()) | set(usual.attribute_map)
    common = {key: value for key, value in COMMON.items() if key in names and _settable(usual, key)}
    return AutoConfig.for_model(kind, **common | own)


def _settable(config: Any, key: str) -> bool:
    found = getattr(type(config), key, None)
    return not isinstance(found, property) or found.fset is not None


def tiny(name: str, seed: int = 0) -> Any:
    """The model itself, with weights drawn so that its logits have clear favourites."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config(name), dtype=torch.float32).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, 1.5 / weight.shape[-1] ** 0.5)
    model.generation_config.eos_token_id = None
    return model
