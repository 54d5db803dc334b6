"""Distillation of the draft: it learns the target's distribution on the corpus and on text that the target wrote itself.

On text that the target wrote the draft sees the states that it will meet when it drafts (DistillSpec, arXiv:2310.08461). The loss is
kl_weight x KL(target || draft) + (1 - kl_weight) x cross-entropy, in nats a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from specrig.corpus import gather as corpus
from specrig.training import llama
from specrig.training.llama import Llama
from specrig.training.losses import distillation
from specrig.training.recipe import Recipe
from specrig.training.run import training
from specrig.training.target_text import learnt_from, present, read_text, row_batches, states
from specrig.training.tokenizer import end_of_text, load_tokenizer, save_tokenizer
from specrig.training.trainer import (
    PackedText,
    autocast,
    evaluate,
    moved,
    place,
    read_heldout,
    tokenize,
    train,
)

Taught = tuple[Tensor, Tensor | None]
"""Tokens `[B, T + 1]`, and the teacher's hidden states `[B, T, D]` of all but the last where they are known already."""


def train_draft(recipe: Recipe, corpus_dir: Path, models: Path, target: Path, progress: bool, device: str = "cpu") -> None:
    """Distil the model in the folder `target` into the model folder `models`/draft, with the target's tokenizer.

    Also writes its `training.jsonl`. Raises CorpusError and TrainingError like `train_target`, and TrainingError when there
    is no target or no text of it.
    """
    where = place(device)
    target, own = present(target, "target"), read_text(models).train
    rows = corpus.read(corpus_dir / "train.jsonl")
    tokenizer = load_tokenizer(target)
    eos = end_of_text(tokenizer)
    settings = recipe.draft_training
    teacher = llama.load(target).to(where).eval()
    heldout = read_heldout(corpus_dir, tokenizer, eos)
    model = Llama(recipe.draft, teacher.vocabulary).initialise(recipe.seed + 1).to(where)
    with training(models / "draft", settings.steps, progress, learnt_from(recipe, corpus_dir, models, target)) as run:
        together = settings.batch // settings.accumulate
        text = iter(PackedText(tokenize(rows, tokenizer, eos), together, settings.sequence, recipe.seed + 1))
        batches = _mixed(text, own, teacher, recipe)
        loss = distillation_loss(model, teacher, recipe.distillation.kl_weight)
        train(model, settings, batches, loss, lambda: evaluate(model, heldout), run)
        llama.save(model, run.folder, eos)
        save_tokenizer(tokenizer, run.folder, recipe.draft.context)


def distillation_loss(model: Llama, teacher: Llama, kl_weight: float) -> Callable[[Taught], Tensor]:
    """kl_weight x KL(teacher || model) + (1 - kl_weight) x cross-entropy, nats a token."""
    where = model.embedding.device

    def loss(batch: Taught) -> Tensor:
        tokens = moved(batch[0], where)
        with autocast(where):
            with torch.no_grad():
                # The teacher's logits [B · T, V], from its states where these are stored.
                hidden = teacher(tokens[:, :-1]) if batch[1] is None else batch[1]
                goal = teacher.logits(hidden).flatten(0, 1)
            logits = model.logits(model(tokens[:, :-1])).flatten(0, 1)
        return distillation(logits, goal, tokens[:, 1:].flatten(), kl_weight)

    return loss


def _mixed(text: Iterator[Tensor], own: Tensor, teacher: Llama, recipe: Recipe) -> Iterator[Taught]:
    """Batches of the corpus, then, for the last `generated_share` of the steps, of the target's own text with its hidden states."""
    settings, share = recipe.draft_training, recipe.distillation.generated_share if len(own) else 0.0
    switch = round(settings.steps * (1 - share))
    for _ in range(switch * settings.accumulate):
        yield next(text), None
    where = teacher.embedding.device
    own, hidden = moved(own, where), states(teacher, own[:, :-1])  # once: its sequences come up several times
    for rows in row_batches(len(own), settings.batch // settings.accumulate, recipe.seed + 2):
        rows = moved(rows, where)
        yield own[rows], hidden[rows]
