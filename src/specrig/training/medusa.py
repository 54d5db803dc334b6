"""Training of Medusa heads (Cai et al., 2401.10774, section 2.2): on a frozen model (Medusa-1) or together with it (Medusa-2).

A frozen model's hidden states are computed once and the heads train on them, so a step costs the heads alone. The text is part
corpus, part what the model itself writes. Shapes: N sequences, T tokens, D hidden, V vocabulary, K heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from specrig.decoding.heads import medusa as checkpoint
from specrig.training import corpus, llama
from specrig.training.distil import target_text
from specrig.training.example import TASKS
from specrig.training.generate import continuations
from specrig.training.llama import Llama
from specrig.training.losses import distillation
from specrig.training.medusa_recipe import MedusaTraining
from specrig.training.optimizer import Optimizer
from specrig.training.recipe import Distillation, Optimisation, Recipe
from specrig.training.tokenizer import end_of_text, load_tokenizer, save_tokenizer
from specrig.training.trainer import Curve, PackedText, TrainingError, autocast, device, model_folder, tokenize

RANKS = 10
"""Choices of a head whose accuracy is measured."""


class Head(nn.Module):
    """One head while it trains. The residual block starts at zero, the LM head as the model's: it begins by saying what that says."""

    def __init__(self, model: Llama, own_lm_head: bool) -> None:
        super().__init__()
        D = model.shape.hidden
        self.weight = nn.Parameter(torch.zeros(D, D))
        self.bias = nn.Parameter(torch.zeros(D))
        self.embedding = nn.Parameter(model.embedding.detach().clone()) if own_lm_head else None

    def forward(self, hidden: Tensor, lm_head: Tensor) -> Tensor:
        """Hidden states `[..., D]` -> logits `[..., V]`; `lm_head` `[V, D]` is the model's."""
        state = hidden + F.silu(F.linear(hidden, self.weight, self.bias.to(hidden.dtype)))
        return F.linear(state, lm_head if self.embedding is None else self.embedding)


class Heads(nn.ModuleList):
    """K heads of one model."""

    def __init__(self, model: Llama, settings: MedusaTraining) -> None:
        super().__init__(Head(model, settings.own_lm_heads) for _ in range(settings.heads))

    def tensors(self, model: Llama) -> dict[str, Tensor]:
        """The weights under the checkpoint's names."""
        found: dict[str, Tensor] = {}
        for index, head in enumerate(self):
            assert isinstance(head, Head)
            found |= {f"blocks.{index}.layers.0.weight": head.weight, f"blocks.{index}.layers.0.bias": head.bias}
            if head.embedding is not None:
                found[f"lm_heads.{index}.weight"] = head.embedding
        return found if f"lm_heads.{0}.weight" in found else found | {"lm_head.weight": model.embedding}


def heads_loss(heads: Heads, lm_head: Tensor, hidden: Tensor, goal: Tensor, tokens: Tensor, settings: MedusaTraining) -> Tensor:
    """Σ decay^i x loss of head i, on `hidden` `[B, T, D]`, `tokens` `[B, T]` and the teacher's logits `goal` `[B, T, V]`.

    At position t head i answers for token t + 2 + i, about which the teacher speaks at position t + 1 + i.
    """
    total, T = torch.zeros((), device=hidden.device), tokens.shape[1]
    for index, head in enumerate(heads):
        reach = T - 2 - index
        logits = head(hidden[:, :reach], lm_head)
        taught = goal[:, index + 1 : index + 1 + reach]
        labels = tokens[:, index + 2 :]
        loss = distillation(logits.flatten(0, 1), taught.flatten(0, 1), labels.flatten(), settings.kl_weight)
        total = total + settings.decay**index * loss
    return total


def train_heads(
    recipe: Recipe,
    settings: MedusaTraining,
    corpus_dir: Path,
    model: Path,
    out: Path,
    progress: bool,
    *,
    writer: Path | None = None,
) -> None:
    """Medusa-1: train heads on the frozen model folder `model` and write the folder `out` (config.json, model.safetensors).

    `writer` is the model that the heads have to please, where it is another one of the same tokenizer: the target, for heads of
    the draft. It writes the text and is the teacher. Also writes `out/training.jsonl`: the loss, and at the end how often each
    head's first choice is what the writer says on held-out prompts. Raises CorpusError for a missing corpus, TrainingError when
    there is no model or the loss is not finite.
    """
    session = Session(recipe, settings, corpus_dir, model, writer)
    with model_folder(out) as folder, Curve(folder / "training.jsonl", out.name, settings.steps, progress) as curve:
        heads = session.fit(curve)
        session.finish(heads, folder, curve)


def train_jointly(recipe: Recipe, settings: MedusaTraining, corpus_dir: Path, model: Path, out: Path, progress: bool) -> None:
    """Medusa-2: heads alone first, as their warm-up, then heads and model; writes `out/target` and `out/medusa`.

    The model's own loss is its distance from what it was, so that it stays the model it was (self-distillation, section 2.3.2).
    Raises like `train_heads`.
    """
    session = Session(recipe, settings, corpus_dir, model, None)
    joint = settings.joint
    with model_folder(out) as folder:
        (folder / "medusa").mkdir()
        (folder / "target").mkdir()
        steps = settings.steps + joint.steps
        with Curve(folder / "medusa" / "training.jsonl", out.name, steps, progress) as curve:
            heads = session.fit(curve)
            session.fit_jointly(heads, curve)
            session.finish(heads, folder / "medusa", curve)
        llama.save(session.model, folder / "target", session.eos)
        save_tokenizer(session.tokenizer, folder / "target", session.model.shape.context)


class Session:
    """What both trainings share: the models, the text, the hidden states, the measuring."""

    def __init__(self, recipe: Recipe, settings: MedusaTraining, corpus_dir: Path, model: Path, writer: Path | None) -> None:
        for folder in (model, writer or model):
            if not (folder / "model.safetensors").is_file():
                raise TrainingError(f"{folder}: no trained model there; train it first with `specrig train`")
        self.recipe, self.settings, self.corpus_dir = recipe, settings, corpus_dir
        self.tokenizer = load_tokenizer(model)
        self.eos = end_of_text(self.tokenizer)
        self.where = device()
        self.model = llama.load(model).to(self.where).eval().requires_grad_(False)
        self.writer = llama.load(writer).to(self.where).eval().requires_grad_(False) if writer else self.model
        self.texts = self._texts()
        self.hidden = states(self.model, self.texts)
        self.taught = self.hidden if writer is None else states(self.writer, self.texts)

    def fit(self, curve: Curve) -> Heads:
        """The heads, trained on the frozen model's hidden states."""
        settings = self.settings
        heads = Heads(self.model, settings).to(self.where)
        optimizer = Optimizer(heads, self._optimisation(settings.steps, settings.lr, settings.matrix_lr))
        batches = self._batches(self.recipe.seed + 5)
        for step in range(1, settings.steps + 1):
            rows = next(batches)
            with autocast(self.where):
                with torch.no_grad():
                    goal = self.writer.logits(self.taught[rows].to(self.where))
                tokens = self.texts[rows].to(self.where)
                loss = heads_loss(heads, self.model.embedding, self.hidden[rows].to(self.where), goal, tokens, settings)
            self._step(step, loss, [optimizer], curve)
        return heads

    def fit_jointly(self, heads: Heads, curve: Curve) -> None:
        """Train heads and model together. The teacher is the model as it was."""
        settings, joint = self.settings, self.settings.joint
        before = self.model.embedding.detach().clone()
        self.model.requires_grad_(True).train()
        optimizers = [
            Optimizer(heads, self._optimisation(joint.steps, settings.lr, settings.matrix_lr)),
            Optimizer(self.model, self._optimisation(joint.steps, joint.lr, joint.matrix_lr)),
        ]
        batches = self._batches(self.recipe.seed + 6)
        for step in range(1, joint.steps + 1):
            rows = next(batches)
            tokens = self.texts[rows].to(self.where)
            with autocast(self.where):
                with torch.no_grad():
                    goal = F.linear(self.taught[rows].to(self.where), before)
                hidden = self.model(tokens)
                own = self.model.logits(hidden[:, :-1]).flatten(0, 1)
                loss = distillation(own, goal[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), settings.kl_weight)
                loss = loss + joint.heads_weight * heads_loss(heads, self.model.embedding, hidden, goal, tokens, settings)
            self._step(settings.steps + step, loss, optimizers, curve)
        self.model.requires_grad_(False).eval()

    def finish(self, heads: Heads, folder: Path, curve: Curve) -> None:
        """Measure the heads and write their checkpoint."""
        first, *accuracy = rank_accuracies(heads, self.model, *self._heldout())
        curve.write(curve.steps, accuracy=[shares[0] for shares in accuracy])
        curve.say(f"first choices right on held-out prompts: {', '.join(f'{shares[0]:.3f}' for shares in accuracy)}")
        config = checkpoint.heads_config(
            hidden=self.model.shape.hidden,
            vocabulary=self.model.vocabulary,
            heads=len(heads),
            shared=not self.settings.own_lm_heads,
            measured={"accuracy": accuracy, "first": first},
        )
        checkpoint.save(folder, config, heads.tensors(self.model))

    def _step(self, step: int, loss: Tensor, optimizers: list[Optimizer], curve: Curve) -> None:
        value = loss.item()
        if not math.isfinite(value):
            raise TrainingError(f"{curve.label}: the loss is {value} at step {step}; lower lr and matrix_lr")
        loss.backward()
        rate = optimizers[0].rate()
        for optimizer in optimizers:
            optimizer.step()
        tokens = step * self.settings.batch * self.settings.sequence
        curve.write(step, tokens=tokens, loss=round(value, 5), lr=self.settings.lr * rate)
        curve.show(step, value)

    def _optimisation(self, steps: int, lr: float, matrix_lr: float) -> Optimisation:
        settings = self.settings
        return Optimisation(steps=steps, batch=settings.batch, sequence=settings.sequence, lr=lr, matrix_lr=matrix_lr)

    def _texts(self) -> Tensor:
        """Sequences of the corpus and of the writer's own: `[N, sequence + 1]`."""
        settings, rows = self.settings, corpus.read(self.corpus_dir / "train.jsonl")
        wishes = Distillation(generated_sequences=settings.generated_sequences, temperatures=settings.temperatures)
        width = self.recipe.draft_training.model_copy(update={"sequence": settings.sequence})
        recipe = self.recipe.model_copy(update={"distillation": wishes, "draft_training": width})
        made = [target_text(recipe, rows, self.tokenizer, self.writer)]
        if settings.corpus_sequences:
            packed = self._optimisation(1, settings.lr, settings.matrix_lr).model_copy(
                update={"batch": settings.corpus_sequences}
            )
            made.append(next(iter(PackedText(tokenize(rows, self.tokenizer, self.eos), packed, self.recipe.seed + 5))))
        return torch.cat(made)

    def _batches(self, seed: int) -> Iterator[Tensor]:
        """Rows of the texts, `settings.batch` at a time, in a new order each epoch."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.empty(0, dtype=torch.int64)
        while True:
            while len(order) < self.settings.batch:
                order = torch.cat((order, torch.randperm(len(self.texts), generator=generator)))
            yield order[: self.settings.batch]
            order = order[self.settings.batch :]

    def _heldout(self) -> tuple[Tensor, Tensor]:
        """What the writer says to held-out prompts: tokens `[N, sequence + 1]`, and which of them it wrote (up to end-of-text)."""
        width = self.settings.sequence + 1
        prompts = heldout_prompts(self.corpus_dir, self.tokenizer, self.settings.heldout_sequences, width // 2)
        texts = continuations(self.writer, prompts, width, (0.0,), self.recipe.seed)
        written = torch.zeros_like(texts, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            ends = (texts[row, len(prompt) :] == self.eos).nonzero()
            written[row, len(prompt) : len(prompt) + int(ends[0]) + 1 if len(ends) else width] = True
        return texts, written


@torch.no_grad()
def states(model: Llama, texts: Tensor) -> Tensor:
    """Hidden states after the final norm, `[N, T, D]` bfloat16 on the CPU."""
    where, found = model.embedding.device, []
    with autocast(where):
        for rows in texts.split(16):
            found.append(model(rows.to(where)).bfloat16().cpu())
    return torch.cat(found)


def heldout_prompts(corpus_dir: Path, tokenizer: Tokenizer, count: int, longest: int) -> list[list[int]]:
    """Held-out prompts of at most `longest` tokens, shortest first, as many of every task."""
    rows = corpus.read(corpus_dir / "heldout.jsonl")
    prompts: list[list[int]] = []
    for task in TASKS:
        ids = (tokenizer.encode(row["prompt"]).ids for row in rows if row["task"] == task)
        prompts += [prompt for prompt in ids if 0 < len(prompt) <= longest][: count // len(TASKS)]
    return sorted(prompts, key=len)


@torch.no_grad()
def rank_accuracies(heads: Heads, model: Llama, texts: Tensor, written: Tensor) -> list[list[float]]:
    """How often each choice is the token that came, by rank: of the model's LM head, then of every head (`[1 + K][RANKS]`).

    texts: `[N, T]`; written: `[N, T]` bool. Counted is what a draft would offer: positions whose next token was written and whose
    answer was written too.
    """
    where = model.embedding.device
    found: list[list[float]] = []
    with autocast(where):
        hidden = torch.cat([model(rows.to(where)) for rows in texts.split(16)])
        for ahead in range(1, 2 + len(heads)):
            states = hidden[:, :-ahead]
            counts = torch.zeros(RANKS)
            asked = (written[:, 1 : 1 + states.shape[1]] & written[:, ahead:]).to(where)
            answers = texts[:, ahead:].to(where)[asked]
            for state, answer in zip(states[asked].split(2048), answers.split(2048), strict=True):
                logits = (model.logits(state) if ahead == 1 else heads[ahead - 2](state, model.embedding)).float()
                ranks = (logits > logits.gather(1, answer[:, None])).sum(-1)
                counts += torch.bincount(ranks.clamp(max=RANKS), minlength=RANKS + 1)[:RANKS].cpu()
            found.append([round(share, 5) for share in (counts / max(1, len(answers))).tolist()])
    return found
