"""Model folders for tests of what is read before weights are: small, and complete in what they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
"""Tokens 0 to 255; special tokens follow."""


def stand_in(folder: Path, **config: Any) -> Path:
    """A folder with this config.json, a tokenizer of two tokens, and weights of which only the header is of use."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": []}))
    save_file({"x": torch.zeros(1)}, folder / "model.safetensors")
    return folder


def tokenizer(*special: str, eos: str = "</s>") -> PreTrainedTokenizerFast:
    """Byte-level: 256 bytes, then `special`, of which `eos` is the end of a text."""
    made = Tokenizer(models.BPE(vocab={character: number for number, character in enumerate(BYTES)}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in special])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=eos)


def language_model(
    folder: Path,
    rows: int,
    *,
    special: tuple[str, ...] = ("<s>", "</s>"),
    seed: int = 1,
    kind: str = "llama",
    **config: Any,
) -> Any:
    """A random model with an embedding of so many rows, and `tokenizer(*special)`, whose last token ends a text."""
    torch.manual_seed(seed)
    made = AutoConfig.for_model(
        kind,
        **{
            "vocab_size": rows,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "initializer_range": 0.3,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": 255 + len(special),
            "pad_token_id": None,
        }
        | config,
    )
    model = AutoModelForCausalLM.from_config(made).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(3)
    model.save_pretrained(folder)
    tokenizer(*special, eos=special[-1]).save_pretrained(folder)
    return model
