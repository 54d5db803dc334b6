"""A pair so small that the exact distribution of its continuations can be written down, in the checkpoint format every engine loads.

Random weights on purpose: what is tested is the sampler, not the model, and random logits leave no outcome without probability.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from specrig.models.pair import PairFiles

VOCABULARY = 12
PROMPT = (3, 5, 3, 5, 7, 3, 5)
"""Repeats itself, so that drafts from the context have something to match."""


def build(folder: Path, needs: Iterable[str] = (), seed: int = 0) -> PairFiles:
    """Write target, draft and the random heads that a method `needs` below `folder`, unless they are there already."""
    target, draft = folder / "target", folder / "draft"
    if not (folder / "done").exists():
        source = _random(seed)
        _save(source, target)
        _save(_perturbed(source, 0.5, seed + 1), draft)
        (folder / "done").touch()
    return PairFiles("laboratory", str(target), str(draft), heads=_heads(folder, needs, target, draft, seed))


def _random(seed: int) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.12,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def _perturbed(model: Any, scale: float, seed: int) -> Any:
    """The same model with noise on its matrices: a draft that agrees sometimes."""
    import copy

    import torch

    torch.manual_seed(seed)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for weight in copied.parameters():
            if weight.dim() > 1:
                weight += scale * weight.std() * torch.randn_like(weight)
    return copied


def _save(model: Any, folder: Path) -> None:
    """Weights, config and a tokenizer of single letters (prompts are token ids; engines want the files all the same)."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model.save_pretrained(folder)
    letters = {chr(ord("a") + index): index for index in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="a").save_pretrained(folder)


def _heads(folder: Path, needs: Iterable[str], target: Path, draft: Path, seed: int) -> dict[str, Path]:
    from transformers import AutoConfig

    from specrig.decoding.heads import initialise

    made = {}
    for name in needs:
        if name == "draft":
            continue
        made[name] = folder / name
        if not (made[name] / "config.json").exists():
            initialise(name, made[name], AutoConfig.from_pretrained(target), AutoConfig.from_pretrained(draft), seed)
    return made
