"""Distillation of the draft, a small Llama of transformers: it learns the target's distribution on text that the target
wrote, where it sees the states that it will meet when it drafts (DistillSpec, arXiv:2310.08461).

The loss is kl_weight x KL(target || draft) + (1 - kl_weight) x cross-entropy, in nats a token, or one that turns to the
acceptance rate itself. Shapes: B texts, T tokens, D hidden of the target, V vocabulary, Vd tokens that are drafted.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name
from transformers import LlamaConfig, LlamaForCausalLM

from specrig.heads import acceptance
from specrig.heads.acceptance import ahead
from specrig.heads.learner import States, Texts, draft_ids
from specrig.heads.losses import distillation, distribution_loss
from specrig.heads.teacher import Teacher, autocast, copy_tokenizer, load_teacher, moved, outer, rows_at_once
from specrig.training.fit import Lesson, learn
from specrig.training.optimizer import Optimizer
from specrig.training.recipe import Recipe, Shape
from specrig.training.run import training, training_device, within_memory
from specrig.training.target_text import frequent, present, read_text, training_key


def train_draft(recipe: Recipe, models: Path, target: Path, progress: bool, device: str = "cpu") -> None:
    """Distil the model in the folder `target` into the model folder `models`/draft, with the target's tokenizer.

    Also writes its `training.jsonl`: the loss, and at every evaluation the acceptance to expect. Raises TrainingError when
    there is no target or no text of it, and for a loss that is not finite.
    """
    present(target, "target")
    where, text, settings = training_device(device), read_text(models), recipe.draft_training
    with within_memory("draft"):
        teacher = load_teacher(target, where)
        drafted = frequent(text.train, recipe.distillation.draft_vocabulary, teacher.vocabulary)
        learner: Any = DraftLearner(recipe, teacher, drafted).to(where)
    with training(models / "draft", settings.steps, progress, training_key(recipe, models, target)) as run:
        parts = {"draft": (learner, Optimizer(learner, settings, outer(learner.draft)))}
        learn(learner, parts, Lesson(recipe, text, target, target), run)
        copy_tokenizer(target, run.folder)


class DraftLearner(nn.Module):
    """The draft while it trains, as `training.fit.learn` sees it."""

    order = 2
    aux_layers: tuple[int, ...] = ()
    reads_teacher = True

    def __init__(self, recipe: Recipe, teacher: Teacher, drafted: Tensor | None) -> None:
        """drafted: `[Vd]` rising ids of the tokens that can be drafted; None: all."""
        super().__init__()
        self.settings, self.distillation = recipe.draft_training, recipe.distillation
        self.model = self.teacher = teacher
        self.drafted = None if drafted is None else drafted.to(teacher.where)
        self.generator = torch.Generator(teacher.where)
        self.output = teacher.output.subset(self.drafted)
        self.draft = untrained(recipe.draft, teacher.vocabulary, teacher.eos, recipe.seed + 1)
        if recipe.distillation.start == "embedding":
            with torch.no_grad():
                self.draft.get_input_embeddings().weight.copy_(narrowed(teacher.embedding.float(), recipe.draft.hidden))

    def prepare(self, texts: Texts, states: States) -> None:
        """A draft begins as it is."""

    def logits(self, tokens: Tensor, where: Tensor) -> Tensor:
        """Of the positions `where` `[B, T]` bool of tokens `[B, T]`, over the tokens that are drafted: `[M, Vd]`."""
        hidden = self.draft.model(input_ids=tokens, use_cache=False).last_hidden_state[where]
        head: Tensor = self.draft.lm_head.weight
        return F.linear(hidden, head if self.drafted is None else head[self.drafted])

    def loss(self, batch: Texts, states: Tensor, teacher_states: Tensor) -> Tensor:
        """Of the M tokens that the target wrote, nats a token."""
        tokens, written = batch.tokens, batch.written[:, 1:]
        with autocast(self.teacher.where):
            with torch.no_grad():
                goal = self.output(teacher_states[:, :-1][written])
            logits = self.logits(tokens[:, :-1], written)
        if self.distillation.loss == "lk":
            return distribution_loss(logits, goal, "lk")
        labels = draft_ids(tokens[:, 1:][written], self.drafted)
        return distillation(logits, goal, labels, self.distillation.kl_weight)

    @torch.no_grad()
    def measured(self, heldout: Texts, states: States) -> tuple[Tensor, Tensor]:
        """For `acceptance.report`, of texts that the target wrote greedily: a round at position t drafts tokens t + 1, t +
        2, …; `[K, N, T]`.
        """
        where, right = self.teacher.where, []
        for rows in heldout.tokens.split(rows_at_once(where)):
            rows = moved(rows, where)
            every = torch.ones_like(rows[:, :-1], dtype=torch.bool)
            with autocast(where):
                chosen = self.logits(rows[:, :-1], every).argmax(-1).view_as(every)
            right.append((chosen == draft_ids(rows[:, 1:], self.drafted)).cpu())
        good, depths = torch.cat(right), acceptance.DEPTH
        return torch.stack([ahead(good, depth) for depth in range(depths)]), acceptance.rounds(heldout.written, depths)

    def save(self, folder: Path) -> None:
        """Write the model; `specrig.drafted` in its config.json are the tokens that it drafts, where these are not all."""
        if self.drafted is not None:
            self.draft.config.specrig = {"drafted": self.drafted.tolist()}
        self.draft.save_pretrained(folder)


def untrained(shape: Shape, vocabulary: int, ends: Iterable[int], seed: int) -> LlamaForCausalLM:
    """A Llama of this shape with random weights. ends: the tokens that end a text."""
    ends = list(ends)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.context,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=ends[0],
        eos_token_id=ends[0] if len(ends) == 1 else ends,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


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
