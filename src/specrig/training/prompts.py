"""What the target is asked, so that it writes the text from which its draft and heads learn."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from specrig.corpus import gather as corpus
from specrig.corpus.example import TASKS, number
from specrig.training.recipe import Recipe
from specrig.training.tokenizer import load_tokenizer


def training_prompts(recipe: Recipe, corpus_dir: Path, target: Path) -> list[list[int]]:
    """Token ids of training prompts, shortest first, equally many of every task. A prompt takes at most half of a sequence."""
    tokenizer, rows = load_tokenizer(target), corpus.read(corpus_dir / "train.jsonl")
    prompts: list[list[int]] = []
    for task in TASKS:
        mine = sorted({row["prompt"] for row in rows if row["task"] == task}, key=lambda p: number(recipe.seed, p))
        prompts += _fitting(mine[: 2 * recipe.text.sequences], tokenizer, recipe.text.sequences, recipe.text.sequence)
    return sorted(prompts, key=len)


def heldout_prompts(recipe: Recipe, corpus_dir: Path, target: Path) -> list[list[int]]:
    """Token ids of held-out prompts, chosen in the same way."""
    tokenizer, rows = load_tokenizer(target), corpus.read(corpus_dir / "heldout.jsonl")
    prompts: list[list[int]] = []
    for task in TASKS:
        mine = [row["prompt"] for row in rows if row["task"] == task]
        prompts += _fitting(mine, tokenizer, recipe.text.heldout_sequences, recipe.text.sequence)
    return sorted(prompts, key=len)


def _fitting(prompts: list[str], tokenizer: Tokenizer, count: int, sequence: int) -> list[list[int]]:
    """A task's share of `count` prompts, those that fill at most half of a sequence."""
    ids = (encoding.ids for encoding in tokenizer.encode_batch(prompts))
    return [prompt for prompt in ids if 0 < len(prompt) <= (sequence + 1) // 2][: count // len(TASKS)]
