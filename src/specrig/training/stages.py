"""What the DAG can train, one row a model: its code, what it needs first, which keys of the recipe decide it. No torch
here.

Every stage writes models/<pair>/<name>/{config.json, model.safetensors, training.jsonl}, whole or not at all. All but
the target also learn from `TEXT`, what the target wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from specrig.training.recipe import Recipe

FILES = ("config.json", "model.safetensors", "training.jsonl")
"""Files that every trained model has (target and draft have a tokenizer and a generation config besides)."""
TEXT = "text.safetensors"
"""In a pair's folder: what its target wrote (`training.target_text`)."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One model to train. `needs`: models that must be there."""

    module: str
    function: str
    needs: tuple[str, ...]
    keys: tuple[str, ...]
    """Keys of the recipe (besides the seed) that decide the result."""
    reads: Callable[[Recipe], int] | None = None
    """It reads the target's states of the target's text and of so many sequences of the corpus; None: of nothing."""
    streams: bool = False
    """Whether it reads three residual streams besides."""


STAGES = {
    "target": Stage("specrig.training.language_model", "train_target", (), ("vocabulary", "target", "target_training")),
    "draft": Stage(
        "specrig.training.distil", "train_draft", ("target",), ("draft", "draft_training", "distillation"), lambda _: 0
    ),
    "medusa": Stage(
        "specrig.training.medusa",
        "train_heads",
        ("target",),
        ("medusa",),
        lambda recipe: recipe.medusa.corpus_sequences,
    ),
    "draft_medusa": Stage("specrig.training.medusa", "train_draft_heads", ("draft", "target"), ("medusa",)),
    "eagle": Stage(
        "specrig.training.eagle", "train_head", ("target",), ("eagle",), lambda recipe: recipe.eagle.corpus_sequences
    ),
    "eagle3": Stage(
        "specrig.training.eagle3",
        "train_head",
        ("target",),
        ("eagle3",),
        lambda recipe: recipe.eagle3.corpus_sequences,
        True,
    ),
    "hydra": Stage(
        "specrig.training.hydra", "train_heads", ("target",), ("hydra",), lambda recipe: recipe.hydra.corpus_sequences
    ),
    "layer_skip": Stage("specrig.training.layer_skip", "search", ("target",), ("layer_skip",)),
    "rest": Stage("specrig.training.rest", "make_datastore", ("target",), ()),
}
JOINT = Stage("specrig.training.medusa", "train_jointly", ("target", "medusa"), ("medusa",))
"""Medusa-2: from another pair's target and its heads, a target and heads that fit each other better."""


def train(
    name: str,
    recipe: Recipe,
    corpus: Path,
    models: Path,
    target: Path,
    progress: bool,
    device: str,
    draft: Path | None = None,
) -> None:
    """Train `models`/<name> (a pair's folder) on `device` from the study's corpus, the model folder `target` and the
    models it needs.

    draft: the folder of the draft whose heads `draft_medusa` trains; None: `models`/draft.
    """
    stage = STAGES[name]
    given = {} if draft is None else {"draft": draft}
    getattr(import_module(stage.module), stage.function)(recipe, corpus, models, target, progress, device, **given)
