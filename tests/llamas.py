"""Small Llamas for tests: the pair in tests/data/tiny, and random ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from runs import REPOSITORY

TINY = REPOSITORY / "tests/data/tiny"
PROMPTS = REPOSITORY / "tests/data/prompts.jsonl"
RECIPE: dict[str, Any] = {
    "prompts": str(PROMPTS),
    "draft": {"layers": 1, "hidden": 32, "heads": 1, "intermediate": 96, "context": 1024},
    "draft_training": {"steps": 30, "batch": 4},
    "text": {"sequences": 24, "heldout_sequences": 8, "sequence": 96},
}
"""`Recipe.model_validate(RECIPE)`: what the target of `TINY` writes in seconds, and a draft that learns from it."""


def random_llama(
    vocabulary: int, *, layers: int = 2, hidden: int = 32, heads: int = 2, intermediate: int = 48, context: int = 64
) -> LlamaForCausalLM:
    """A Llama of this shape with weights that matter."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(layers)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=vocabulary,
                hidden_size=hidden,
                intermediate_size=intermediate,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                num_key_value_heads=heads,
                max_position_embeddings=context,
                initializer_range=0.15,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=0,
            )
        )


def saved_llama(folder: Path, vocabulary: int, **shape: int) -> LlamaForCausalLM:
    """The same, written into a folder."""
    model = random_llama(vocabulary, **shape)
    model.save_pretrained(folder)
    return model
