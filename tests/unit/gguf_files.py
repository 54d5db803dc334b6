"""Tiny GGUF files, written from transformers' models of random weights as llama.cpp's converter writes them; and what
llama.cpp makes of a file.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

from specrig.engines.llamacpp import serve
from specrig.http_client import Client

SIZES = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "head_dim": 8, "bos_token_id": None,
    "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
NAMES = {"gemma3_text": "gemma3", "qwen3_moe": "qwen3moe"}
"""transformers' names of architectures -> llama.cpp's, where they differ."""
TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}<assistant>"
BOS, EOS, TURN, USER = 257, 258, 259, 260
"""Ids of special tokens: `<|bos|>`, `<|eos|>`, `<|turn|>` and, no control token, `<think>`."""


def tiny(kind: str = "llama", **settings: Any) -> Any:
    """A model of an architecture, with random norms and biases too."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **settings})).eval()
    for name, weight in model.named_parameters():
        centre = 1.0 if "norm" in name and "gemma" not in kind else 0.0
        weight.data = centre + (0.3 if weight.dim() > 1 else 0.1) * torch.randn(weight.shape)
    model.tie_weights()
    return model


def byte_level(size: int = 300) -> dict[str, Any]:
    """Keys of a byte-level vocabulary: bytes, a merge, special tokens, and unused ones up to `size`."""
    tokens = [*bytes_to_unicode().values(), "Ġt", "<|bos|>", "<|eos|>", "<|turn|>", "<think>"]
    unused = [f"<unused{index}>" for index in range(size - len(tokens))]
    return {
        "model": "gpt2", "pre": "llama-bpe", "tokens": [*tokens, *unused], "merges": ["Ġ t"],
        "token_type": [1] * 257 + [3, 3, 3, 4] + [5] * len(unused), "bos_token_id": BOS, "eos_token_id": EOS,
    }  # fmt: skip


def pieces(size: int = 300) -> dict[str, Any]:
    """Keys of a SentencePiece vocabulary: bytes and a few pieces with scores."""
    found = ["▁", "t", "h", "e", "a", "s", "▁t", "he", "▁the", "as", "▁▁"]
    bytes_ = [f"<0x{index:02X}>" for index in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *found]
    tokens += [f"<unused{index}>" for index in range(size - len(tokens))]
    scores = [0.0] * 259 + [-float(index) for index in range(len(found))]
    return {
        "model": "llama", "pre": "default", "tokens": tokens, "scores": scores + [-1000.0] * (size - len(scores)),
        "token_type": [2, 3, 3] + [6] * 256 + [1] * len(found) + [5] * (size - 259 - len(found)), "bos_token_id": 1,
        "eos_token_id": 2, "unknown_token_id": 0,
    }  # fmt: skip


def write(
    file: Path,
    model: Any,
    vocabulary: Mapping[str, Any] | None = None,
    *,
    architecture: str | None = None,
    keys: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    without: Sequence[str] = (),
) -> Path:
    """The model as a GGUF file.

    vocabulary: keys after `tokenizer.ggml.`; keys: more keys after the architecture's name, or None for one to leave
    out, or whole names with `general.`, `split.` or `tokenizer.`; tensors: more of them; without: tensors to leave out.
    """
    config = model.config
    name = NAMES.get(config.model_type, config.model_type)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    values: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.key_length": width,
        "attention.value_length": width,
        "rope.freq_base": float(rope.get("full_attention", rope)["rope_theta"]),
    }
    if name not in ("gemma2", "gemma3"):
        values["rope.dimension_count"] = width
    out = gguf.GGUFWriter(file, architecture or name)
    whole = {f"{architecture or name}.{key}" if "." not in key or key.split(".")[0] in (
        "attention", "rope") else key: value for key, value in {**values, **(keys or {})}.items()}  # fmt: skip
    for key, value in (vocabulary or byte_level(config.vocab_size)).items():
        whole.setdefault(f"tokenizer.ggml.{key}", value)
    whole.setdefault("tokenizer.chat_template", TEMPLATE)
    for key, value in whole.items():
        if value is not None:
            _add(out, key, value)
    for key, weight in {**_tensors(model, name), **(tensors or {})}.items():
        if key not in without:
            out.add_tensor(key, np.ascontiguousarray(weight))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return file


def _add(out: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        out.add_array(key, value)
    elif isinstance(value, bool):
        out.add_bool(key, value)
    elif isinstance(value, str):
        out.add_string(key, value)
    elif isinstance(value, float):
        out.add_float32(key, value)
    elif key.startswith("split."):
        out.add_uint16(key, value)
    else:
        out.add_uint32(key, value)


def _tensors(model: Any, name: str) -> dict[str, np.ndarray]:
    """The weights by their names in GGUF. Llama's queries and keys lie pair by pair; Gemma's norms have 1 added."""
    architecture = next(number for number, text in gguf.MODEL_ARCH_NAMES.items() if text == name)
    names, config = gguf.get_tensor_name_map(architecture, model.config.num_hidden_layers), model.config
    found = {}
    for ours, tensor in model.state_dict().items():
        weight = tensor.float().numpy()
        if ours == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if ".experts." in ours:
            layer = f"blk.{ours.split('.')[2]}."
            if ours.endswith("down_proj"):
                found[f"{layer}ffn_down_exps.weight"] = weight
            else:
                half = weight.shape[1] // 2
                found |= {
                    f"{layer}ffn_gate_exps.weight": weight[:, :half],
                    f"{layer}ffn_up_exps.weight": weight[:, half:],
                }
            continue
        base, _, suffix = ours.rpartition(".")
        theirs = names.get_name(base)
        assert theirs is not None, ours
        if name == "llama" and theirs.endswith(("attn_q", "attn_k")):
            heads = config.num_attention_heads if theirs.endswith("q") else config.num_key_value_heads
            weight = weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
        found[f"{theirs}.{suffix}"] = weight + 1 if "gemma" in name and "norm" in theirs else weight
    return found


class LlamaCpp:
    """llama.cpp on a file: what it answers to a text and to token ids. Its server runs in a process of its own, since
    one that ends within this process may wait for itself for ever.
    """

    def __init__(self, file: Path) -> None:
        settings = {
            "model": str(file), "context": 128, "slots": 1, "threads": 1, "device": "cpu", "exact_cache": True,
            "vocabulary": 0, "speculation": None,
        }  # fmt: skip
        server, url = serve.start(settings)
        weakref.finalize(self, server.close)
        self.client = Client(url)

    def ids(self, text: str) -> list[int]:
        return self.client.post("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]

    def greedy(self, prompt: str | list[int], tokens: int) -> list[int]:
        """A text goes on until one of the file's own ends; token ids go on to the limit."""
        more = {"ignore_eos": True} if isinstance(prompt, list) else {}
        body = {
            "prompt": prompt, "n_predict": tokens, "temperature": 0, "samplers": ["temperature"], "return_tokens": True,
            "cache_prompt": False, **more,
        }  # fmt: skip
        return self.client.post("/completion", body)["tokens"]
