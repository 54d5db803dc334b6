"""What the DAG can train, one row a model: its code, what it needs first, which keys of the recipe decide it. No torch here.

Every stage writes models/<pair>/<name>/{config.json, model.safetensors, training.jsonl}, whole or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from specrig.training.recipe import Recipe

FILES = ("config.json", "model.safetensors", "training.jsonl")
"""Files that every trained model has (target and draft have a tokenizer and a generation config besides)."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One model to train. `needs`: models that must be there, the first of them is what it learns from."""

    module: str
    function: str
    needs: tuple[str, ...]
    keys: tuple[str, ...]
    """Keys of the recipe (besides the seed) that decide the result."""
    settings: str | None = None
    """The recipe's block that the function takes as its own settings."""
    writer: str | None = None
    """The model that writes its training text, where that is not the one it learns from."""


STAGES = {
    "target": Stage("specrig.training.language_model", "train_target", (), ("vocabulary", "target", "target_training")),
    "draft": Stage("specrig.training.distil", "train_draft", ("target",), ("draft", "draft_training", "distillation")),
    "medusa": Stage("specrig.training.medusa", "train_heads", ("target",), ("medusa",), "medusa"),
    "draft_medusa": Stage("specrig.training.medusa", "train_heads", ("draft", "target"), ("medusa",), "medusa", "target"),
    "eagle": Stage("specrig.training.eagle", "train_head", ("target",), ("eagle",), "eagle"),
}


def train(name: str, recipe: Recipe, corpus: Path, models: Path, progress: bool) -> None:
    """Train `models`/<name> (a pair's folder) from the study's corpus and the models it needs there."""
    stage = STAGES[name]
    function = getattr(import_module(stage.module), stage.function)
    settings = () if stage.settings is None else (getattr(recipe, stage.settings),)
    sources = [models / need for need in stage.needs[:1]]
    writer = {} if stage.writer is None else {"writer": models / stage.writer}
    function(recipe, *settings, corpus, *sources, models / name, progress, **writer)
