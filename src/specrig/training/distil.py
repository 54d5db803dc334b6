"""Distillation of the draft: it learns the target's distribution on the corpus and on text that the target wrote itself.

On its own text the draft sees the states it will meet when it drafts (DistillSpec, arXiv:2310.08461). The loss is
kl_weight x KL(target || draft) + (1 - kl_weight) x cross-entropy, in nats a token.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from specrig.training import corpus, llama
from specrig.training.example import TASKS, number
from specrig.training.generate import continuations
from specrig.training.llama import Llama
from specrig.training.losses import distillation
from specrig.training.recipe import Recipe
from specrig.training.tokenizer import end_of_text, load_tokenizer, save_tokenizer
from specrig.training.trainer import (
    Curve,
    PackedText,
    TrainingError,
    autocast,
    device,
    evaluate,
    model_folder,
    read_heldout,
    tokenize,
    train,
)

_ROWS = 128  # sequences generated side by side


def train_draft(recipe: Recipe, corpus_dir: Path, target: Path, out: Path, progress: bool) -> None:
    """Distil the draft from the target folder `target` and write the model folder `out`, with the target's tokenizer.

    Also writes `out/training.jsonl`. Raises CorpusError and TrainingError like `train_target`, and TrainingError when there
    is no target.
    """
    if not (target / "model.safetensors").is_file():
        raise TrainingError(f"{target}: no trained target there; train it with `specrig train --model target`")
    rows = corpus.read(corpus_dir / "train.jsonl")
    tokenizer = load_tokenizer(target)
    eos = end_of_text(tokenizer)
    settings, where = recipe.draft_training, device()
    teacher = llama.load(target).to(where).eval()
    heldout = read_heldout(corpus_dir, tokenizer, eos)
    model = Llama(recipe.draft, teacher.vocabulary).initialise(recipe.seed + 1).to(where)
    with model_folder(out) as folder, Curve(folder / "training.jsonl", "draft", settings.steps, progress) as curve:
        text = iter(PackedText(tokenize(rows, tokenizer, eos), settings, recipe.seed + 1))
        own = target_text(recipe, rows, tokenizer, teacher)
        curve.say(f"the target wrote {own.numel()} tokens")
        batches = _mixed(text, own, recipe)
        loss = distillation_loss(model, teacher, recipe.distillation.kl_weight)
        train(model, settings, batches, loss, lambda: evaluate(model, heldout), curve)
        llama.save(model, folder, eos)
        save_tokenizer(tokenizer, folder, recipe.draft.context)


def target_text(recipe: Recipe, rows: list[dict[str, str]], tokenizer: Tokenizer, teacher: Llama) -> Tensor:
    """Training prompts with the target's continuations: `[N, sequence + 1]` int64, as many of every task.

    Trained heads (Medusa, EAGLE) learn from the same text.
    """
    settings, width = recipe.distillation, recipe.draft_training.sequence + 1
    prompts: list[list[int]] = []
    for task in TASKS:
        mine = sorted({row["prompt"] for row in rows if row["task"] == task}, key=lambda p: number(recipe.seed, p))
        ids = (encoding.ids for encoding in tokenizer.encode_batch(mine[: 2 * settings.generated_sequences]))
        # At least half of the sequence is left for the target to write.
        prompts += [prompt for prompt in ids if len(prompt) <= width // 2][: settings.generated_sequences // len(TASKS)]
    prompts.sort(key=len)
    writer = copy.deepcopy(teacher).bfloat16()  # twice as fast; what it writes is text, its teaching stays float32's
    made = [
        continuations(writer, prompts[start : start + _ROWS], width, settings.temperatures, recipe.seed + start)
        for start in range(0, len(prompts), _ROWS)
    ]
    return torch.cat(made) if made else torch.zeros(0, width, dtype=torch.int64)


def distillation_loss(model: Llama, teacher: Llama, kl_weight: float) -> Callable[[Tensor], Tensor]:
    """kl_weight x KL(teacher || model) + (1 - kl_weight) x cross-entropy of `[B, T + 1]` tokens, nats a token."""
    where = model.embedding.device

    def loss(batch: Tensor) -> Tensor:
        batch = batch.to(where, non_blocking=True)
        inputs, labels = batch[:, :-1], batch[:, 1:].flatten()
        with torch.no_grad(), autocast(where):
            goal = teacher.logits(teacher(inputs)).flatten(0, 1)
        with autocast(where):
            logits = model.logits(model(inputs)).flatten(0, 1)
        return distillation(logits, goal, labels, kl_weight)

    return loss


def _mixed(text: Iterator[Tensor], own: Tensor, recipe: Recipe) -> Iterator[Tensor]:
    """Batches of the corpus, and of the target's own text for the last `generated_share` of the steps."""
    settings, share = recipe.draft_training, recipe.distillation.generated_share if len(own) else 0.0
    switch = round(settings.steps * (1 - share))
    for _ in range(switch):
        yield next(text)
    generator = torch.Generator().manual_seed(recipe.seed + 2)
    order: list[int] = []
    while True:
        while len(order) < settings.batch:
            order += torch.randperm(len(own), generator=generator).tolist()
        yield own[order[: settings.batch]]
        del order[: settings.batch]
