"""What the DAG can train: a draft, and every kind of head (`heads.trained`). No torch here.

Every stage writes models/<pair>/<name>/{config.json, model.safetensors, training.jsonl}, whole or not at all, and learns
from `TEXT`, what the target wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from specrig import heads
from specrig.heads.base import HeadRecipe
from specrig.training.recipe import Recipe

CHECKPOINT = ("config.json", "model.safetensors")
"""Files from which a training can go on (`initial_checkpoint`)."""
FILES = (*CHECKPOINT, "training.jsonl")
"""Files that every trained model has (a draft has a tokenizer and a generation config besides)."""
TEXT = "text.safetensors"
"""In a pair's folder: what its target wrote (`training.target_text`)."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One model to train."""

    needs: tuple[str, ...]
    """Models that must be there."""
    keys: tuple[str, ...]
    """Keys of the recipe (besides the seed) that decide the result."""


def _head(name: str, kind: type[HeadRecipe]) -> Stage:
    needs = ("draft", "target") if heads.of_draft(name) else ("target",)
    keys = (kind.name,) if kind.model_fields else ()
    return Stage(needs, keys)


STAGES = {
    "draft": Stage(("target",), ("draft", "draft_training", "distillation")),
} | {name: _head(name, kind) for name, kind in heads.trained().items()}
JOINT = Stage(("target", "medusa"), ("medusa",))
"""Medusa-2: from another pair's target and its heads, a target and heads that fit each other better."""


def train(
    name: str, recipe: Recipe, models: Path, target: Path, progress: bool, device: str, draft: Path | None = None
) -> None:
    """Train `models`/<name> (a pair's folder) on `device` from what the model in the folder `target` wrote.

    draft: the folder of the draft whose heads a `draft_<name>` trains; None: `models`/draft.
    """
    if name == "draft":
        import_module("specrig.training.draft").train_draft(recipe, models, target, progress, device)
    else:
        fit = import_module("specrig.training.fit").fit
        fit(name, recipe, models, target, progress=progress, device=device, draft=draft)
