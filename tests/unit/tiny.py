"""A recipe whose pair trains in seconds, and the prompts that a recipe puts to its target."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrig.training.prompts import plan
from specrig.training.recipe import Recipe

if TYPE_CHECKING:
    from specrig.training.text_shards import Part

TINY: dict[str, Any] = {
    "corpus": {
        "characters": {"code": 60_000, "summarization": 60_000, "translation": 60_000, "creative_writing": 60_000},
        "heldout_texts": 8,
        "prompts": 8,
    },
    "vocabulary": 1024,
    "target": {"layers": 2, "hidden": 96, "heads": 2, "intermediate": 256},
    "draft": {"layers": 1, "hidden": 32, "heads": 1, "intermediate": 96},
    "target_training": {"steps": 30, "batch": 4, "evaluations": 2},
    "draft_training": {"steps": 30, "batch": 4, "evaluations": 2},
    "text": {"sequences": 16, "heldout_sequences": 8},
}
"""`Recipe.model_validate(TINY)` shows that the rules work, not how models behave."""


def prompts_of(
    part: Part, recipe: Recipe, corpus_dir: Path, target: Path, without: Collection[str] = ()
) -> list[list[int]]:
    """Token ids of a part's prompts, as many as the recipe says or fewer. without: see `TextShards`."""
    from specrig.training.text_shards import TextShards

    shards = TextShards(target, recipe, corpus_dir, target, "cpu", without)
    count = recipe.text.sequences if part == "train" else recipe.text.heldout_sequences
    planned = islice(plan(shards.groups[part], recipe, target, shards.tokenizer), count)
    return [each.prompt for each in planned if each.prompt is not None]
