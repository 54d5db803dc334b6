"""Distillation of the draft: it learns the target's distribution on the corpus and on text that the target wrote
itself.

On text that the target wrote the draft sees the states that it will meet when it drafts (DistillSpec,
arXiv:2310.08461). The loss is kl_weight x KL(target || draft) + (1 - kl_weight) x cross-entropy, in nats a token, or
one that turns to the acceptance rate itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specrig.corpus import gather as corpus
from specrig.heads import acceptance
from specrig.heads.acceptance import ahead
from specrig.heads.learner import Texts, draft_ids
from specrig.heads.losses import distillation, distribution_loss
from specrig.heads.teacher import Teacher, autocast, copy_tokenizer, load_teacher, moved, rows_at_once
from specrig.training import llama
from specrig.training.llama import Llama
from specrig.training.recipe import Distillation, Recipe
from specrig.training.run import Run, training, within_memory
from specrig.training.states import states_of
from specrig.training.target_text import frequent, present, read_text, row_batches, training_key
from specrig.training.tokenizer import load_tokenizer
from specrig.training.trainer import PackedText, tokenize, train, training_device

TeacherBatch = tuple[Texts, Tensor | None]
"""B texts of T + 1 tokens, and the teacher's states `[B, T, D]` of all tokens but the last where they are known
already.
"""


def train_draft(
    recipe: Recipe, corpus_dir: Path, models: Path, target: Path, progress: bool, device: str = "cpu"
) -> None:
    """Distil the model in the folder `target` into the model folder `models`/draft, with the target's tokenizer.

    Also writes its `training.jsonl`: the loss, and at every evaluation the acceptance to expect. Raises CorpusError and
    TrainingError like `train_target`, and TrainingError when there is no target or no text of it.
    """
    present(target, "target")
    where, text = training_device(device), read_text(models)
    with within_memory("draft"):
        teacher = load_teacher(target, where)
    settings = recipe.draft_training
    drafted = frequent(text.train, recipe.distillation.draft_vocabulary, teacher.vocabulary)
    model = Llama(recipe.draft, teacher.vocabulary).initialise(recipe.seed + 1)
    if recipe.distillation.start == "embedding":
        with torch.no_grad():
            model.embedding.copy_(narrowed(teacher.embedding.float(), recipe.draft.hidden))
    model.to(where)
    key = training_key(recipe, corpus_dir, models, target)

    def measure() -> tuple[dict[str, Any], str]:
        found = acceptance.report(*measured(model, drafted, text.heldout))
        return found, acceptance.summary(found)

    with training(models / "draft", settings.steps, progress, key) as run:
        batches = _mixed(recipe, corpus_dir, target, text.train, teacher, run)
        train(model, settings, batches, distillation_loss(model, teacher, recipe.distillation, drafted), measure, run)
        llama.save(model, run.folder, teacher.eos, drafted)
        copy_tokenizer(target, run.folder)


def narrowed(embedding: Tensor, width: int) -> Tensor:
    """An embedding `[V, D]` as one of `width` columns, with deviation 0.02: its principal directions, so that like
    tokens stay alike.
    """
    centred = embedding - embedding.mean(0)
    if width < embedding.shape[1]:
        centred = centred @ torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -width:]
    elif width > embedding.shape[1]:
        centred = torch.nn.functional.pad(centred, (0, width - embedding.shape[1]))
    return centred * (0.02 / centred.std())


def distillation_loss(
    model: Llama, teacher: Teacher, settings: Distillation, drafted: Tensor | None = None
) -> Callable[[TeacherBatch], Tensor]:
    """The loss of what the target wrote, nats a token; over the tokens `drafted` `[Vd]` alone, None: all."""
    output = teacher.output.subset(None if drafted is None else drafted.to(teacher.where))

    def loss(batch: TeacherBatch) -> Tensor:
        tokens, written = moved(batch[0].tokens, teacher.where), moved(batch[0].written[:, 1:], teacher.where)
        with autocast(teacher.where):
            with torch.no_grad():
                # The teacher's logits [M, Vd] of the M tokens that it wrote, from its states where these are stored.
                hidden = teacher.states(tokens[:, :-1]) if batch[1] is None else batch[1]
                goal = output(hidden[written])
            logits = model.logits(model(tokens[:, :-1])[written], drafted)
        if settings.loss == "lk":
            return distribution_loss(logits, goal, "lk")
        return distillation(logits, goal, draft_ids(tokens[:, 1:][written], drafted), settings.kl_weight)

    return loss


@torch.no_grad()
def measured(model: Llama, drafted: Tensor | None, heldout: Texts) -> tuple[Tensor, Tensor]:
    """For `acceptance.report`, of texts that the target wrote greedily: a round at position t drafts tokens t + 1, t +
    2, …; `[K, N, T]`.
    """
    where, right = model.embedding.device, []
    for rows in heldout.tokens.split(rows_at_once(where)):
        rows = moved(rows, where)
        with autocast(where):
            chosen = model.logits(model(rows[:, :-1]), drafted).argmax(-1)
        right.append((chosen == draft_ids(rows[:, 1:], drafted)).cpu())
    good, depths = torch.cat(right), acceptance.DEPTH
    return torch.stack([ahead(good, depth) for depth in range(depths)]), acceptance.rounds(heldout.written, depths)


def _mixed(
    recipe: Recipe, corpus_dir: Path, target: Path, own: Texts, teacher: Teacher, run: Run
) -> Iterator[TeacherBatch]:
    """Batches of the corpus, then, for the last `generated_share` of the steps, of the target's own text with its
    hidden states.
    """
    settings, share = recipe.draft_training, recipe.distillation.generated_share if len(own.tokens) else 0.0
    together, switch = settings.batch // settings.accumulate, round(settings.steps * (1 - share))
    if switch:
        texts = tokenize(corpus.read(corpus_dir / "train.jsonl"), load_tokenizer(target), teacher.eos[0])
        packed = iter(PackedText(texts, together, settings.sequence, recipe.seed + 1))
        for _ in range(switch * settings.accumulate):
            tokens = next(packed)
            yield Texts(tokens, torch.ones_like(tokens, dtype=torch.bool)), None
    hidden = states_of(run.folder, target, teacher, own)
    for rows in row_batches(len(own.tokens), together, recipe.seed + 2):
        yield Texts(own.tokens[rows], own.written[rows]), hidden[rows][:, :-1]
