"""Training of Medusa heads (Cai et al., 2401.10774, section 2.2): on a frozen model (Medusa-1) or together with it (Medusa-2).

A frozen model's hidden states are computed once and the heads train on them, so a step costs the heads alone. The text is part
corpus, part what the target itself wrote. Shapes: N sequences, T tokens, D hidden, V vocabulary, K heads.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from specrig.decoding.heads import medusa as checkpoint
from specrig.training import llama
from specrig.training.llama import Llama
from specrig.training.losses import distillation
from specrig.training.medusa_recipe import MedusaTraining
from specrig.training.optimizer import Optimizer
from specrig.training.recipe import Optimisation, Recipe
from specrig.training.run import Curve, Run, model_folder, training, within_memory
from specrig.training.target_text import learnt_from, present, read_text, row_batches, states, with_corpus
from specrig.training.tokenizer import end_of_text, load_tokenizer, save_tokenizer
from specrig.training.trainer import autocast, moved, place, rows_at_once

RANKS = 10
"""How many of a head's choices, from the first, have their accuracy measured."""


class Head(nn.Module):
    """One head while it trains. The residual block starts at zero and the LM head as the model's, so at first both predict the same."""

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
        return found if "lm_heads.0.weight" in found else found | {"lm_head.weight": model.embedding}

    def restore(self, folder: Path) -> None:
        """Become the heads of a checkpoint that `tensors` named, made with the same settings."""
        found = load_file(folder / "model.safetensors")
        for index, head in enumerate(self):
            assert isinstance(head, Head)
            state = {"weight": found[f"blocks.{index}.layers.0.weight"], "bias": found[f"blocks.{index}.layers.0.bias"]}
            if head.embedding is not None:
                state["embedding"] = found[f"lm_heads.{index}.weight"]
            head.load_state_dict(state)


def heads_loss(heads: Heads, lm_head: Tensor, hidden: Tensor, goal: Tensor, tokens: Tensor, settings: MedusaTraining) -> Tensor:
    """The sum over heads i of decay^i times the head's loss (2401.10774, equation 1).

    hidden: `[B, T, D]`; tokens: `[B, T]`; goal: the teacher's logits, `[B, T, V]`. At position t head i predicts token t + 2 + i, which
    the teacher predicts at position t + 1 + i.
    """
    total, T = torch.zeros((), device=hidden.device), tokens.shape[1]
    for index, head in enumerate(heads):
        reach = T - 2 - index  # positions whose token t + 2 + index is there
        logits = head(hidden[:, :reach], lm_head)
        taught = goal[:, index + 1 : index + 1 + reach]
        labels = tokens[:, index + 2 :]
        loss = distillation(logits.flatten(0, 1), taught.flatten(0, 1), labels.flatten(), settings.kl_weight)
        total = total + settings.decay**index * loss
    return total


def train_heads(recipe: Recipe, corpus_dir: Path, models: Path, target: Path, progress: bool, device: str = "cpu") -> None:
    """Medusa-1: train heads on the frozen model in `target` and write the folder `models`/medusa (config.json, model.safetensors).

    Also writes its `training.jsonl`: the loss, and at the end how often each head's first choice is what the target says to held-out
    prompts. Raises CorpusError for a missing corpus, TrainingError when there is no model or text, or the loss is not finite.
    """
    _train_frozen(recipe, corpus_dir, models, target, of=target, name="medusa", progress=progress, device=device)


def train_draft_heads(recipe: Recipe, corpus_dir: Path, models: Path, target: Path, progress: bool, device: str = "cpu") -> None:
    """Train heads on the frozen `models`/draft and write `models`/draft_medusa. Their teacher is the target, which will verify them."""
    draft = present(models / "draft", "draft")
    _train_frozen(recipe, corpus_dir, models, target, of=draft, name="draft_medusa", progress=progress, device=device)


def _train_frozen(
    recipe: Recipe, corpus_dir: Path, models: Path, target: Path, *, of: Path, name: str, progress: bool, device: str
) -> None:
    """Train heads on the frozen model in `of` and write them to `models`/`name`."""
    with within_memory(name):
        session = Session(recipe, corpus_dir, models, target, of, device)
    with training(models / name, session.settings.steps, progress, session.key) as run:
        heads = Heads(session.model, session.settings).to(session.where)
        session.fit(heads, run)
        session.finish(heads, run)


def train_jointly(
    recipe: Recipe, corpus_dir: Path, base: Path, models: Path, target: Path, progress: bool, device: str = "cpu"
) -> None:
    """Medusa-2: train `target`, the target of the pair folder `base`, further, together with its heads; writes `models`/target and /medusa.

    The heads begin as `base`/medusa, which were trained alone, as in the paper's warm-up (section 2.2.2). The model's own loss is its
    KL divergence from the model before this training, so that it changes little (self-distillation, section 2.3.2). Raises like
    `train_heads`.
    """
    with within_memory(models.name):
        session = Session(recipe, corpus_dir, base, target, target, device)
    steps = recipe.medusa.joint.steps
    heads = Heads(session.model, session.settings)
    heads.restore(present(base / "medusa", "medusa"))
    with model_folder(models / "target") as folder, training(models / "medusa", steps, progress, session.key) as run:
        with Curve(folder / "training.jsonl", "target", steps, False) as own:
            session.fit_jointly(heads.to(session.where), own, run)
        session.finish(heads, run)
        llama.save(session.model, folder, session.eos)
        save_tokenizer(session.tokenizer, folder, session.model.shape.context)


class Session:
    """What Medusa's trainings share: the models, the text with its hidden states, the two training loops, and the measuring.

    of: the folder of the model that gets heads, the target's own or a draft's. The teacher is always the target.
    """

    def __init__(self, recipe: Recipe, corpus_dir: Path, models: Path, target: Path, of: Path, device: str) -> None:
        present(of, "target")
        self.where = place(device)
        self.text = read_text(models)
        self.recipe, self.settings = recipe, recipe.medusa
        self.tokenizer = load_tokenizer(of)
        self.eos = end_of_text(self.tokenizer)
        self.key = learnt_from(recipe, corpus_dir, models, *dict.fromkeys((of, target)))
        self.model = self._load(of)
        self.teacher = self.model if of == target else self._load(present(target, "target"))
        texts = with_corpus(self.text.train, self.settings.corpus_sequences, corpus_dir, self.tokenizer, recipe.seed + 5)
        self.texts = moved(texts, self.where)  # `[N, T + 1]`
        self.hidden = states(self.model, self.texts)
        self.taught = self.hidden if self.teacher is self.model else states(self.teacher, self.texts)

    def fit(self, heads: Heads, run: Run) -> None:
        """Train heads on the frozen model's hidden states."""
        settings = self.settings
        optimizer = Optimizer(heads, self._optimisation(settings.steps, settings.lr, settings.matrix_lr))
        batches = row_batches(len(self.texts), settings.batch, self.recipe.seed + 5)
        run.begin({"heads": (heads, optimizer)})
        for step, rows in islice(enumerate(batches, 1), run.done, settings.steps):
            rows = moved(rows, self.where)
            tokens = self.texts[rows]
            with autocast(self.where):
                with torch.no_grad():
                    goal = self.teacher.logits(self.taught[rows])
                loss = heads_loss(heads, self.model.embedding, self.hidden[rows], goal, tokens, settings)
            run.take_step(step, [loss], tokens=step * tokens.numel(), lr=settings.lr)

    def fit_jointly(self, heads: Heads, own_curve: Curve, run: Run) -> None:
        """Train heads and model together. The teacher is the model before this training, by its LM head and stored hidden states."""
        settings, joint = self.settings, self.settings.joint
        before = self.model.embedding.detach().clone()
        self.model.requires_grad_(True).train()
        run.begin(
            {
                "heads": (heads, Optimizer(heads, self._optimisation(joint.steps, settings.lr, settings.matrix_lr))),
                "model": (self.model, Optimizer(self.model, self._optimisation(joint.steps, joint.lr, joint.matrix_lr))),
            }
        )
        batches = row_batches(len(self.texts), settings.batch, self.recipe.seed + 6)
        for step, rows in islice(enumerate(batches, 1), run.done, joint.steps):
            rows = moved(rows, self.where)
            tokens = self.texts[rows]
            with autocast(self.where):
                with torch.no_grad():
                    # The teacher: the stored states through the LM head as it was before.
                    goal = F.linear(self.taught[rows], before)
                hidden = self.model(tokens)
                logits = self.model.logits(hidden[:, :-1]).flatten(0, 1)
                # The model's own loss, then the heads' beside it with weight lambda_0 (2401.10774, section 2.2.2).
                own = distillation(logits, goal[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), settings.kl_weight)
                loss = own + joint.heads_weight * heads_loss(heads, self.model.embedding, hidden, goal, tokens, settings)
            own_curve.note(step, own, tokens=step * tokens.numel())
            run.take_step(step, [loss], tokens=step * tokens.numel(), lr=settings.lr)
        self.model.requires_grad_(False).eval()

    def finish(self, heads: Heads, run: Run) -> None:
        """Measure the heads and write their checkpoint."""
        first, *accuracy = rank_accuracies(heads, self.model, self.text.heldout, self.text.written)
        run.curve.write(run.curve.steps, accuracy=[shares[0] for shares in accuracy])
        run.curve.say(f"first choices right on held-out prompts: {', '.join(f'{shares[0]:.3f}' for shares in accuracy)}")
        config = checkpoint.heads_config(
            hidden=self.model.shape.hidden,
            vocabulary=self.model.vocabulary,
            heads=len(heads),
            shared=not self.settings.own_lm_heads,
            measured={"accuracy": accuracy, "first": first},
        )
        checkpoint.save(run.folder, config, heads.tensors(self.model))

    def _optimisation(self, steps: int, lr: float, matrix_lr: float) -> Optimisation:
        return Optimisation(steps=steps, batch=self.settings.batch, lr=lr, matrix_lr=matrix_lr)

    def _load(self, folder: Path) -> Llama:
        return llama.load(folder).to(self.where).eval().requires_grad_(False)


@torch.no_grad()
def rank_accuracies(heads: Heads, model: Llama, texts: Tensor, written: Tensor) -> list[list[float]]:
    """How often the choice of each rank is the token that came, `[1 + K][RANKS]`: of the model's LM head, then of every head.

    texts: `[N, T]`; written: `[N, T]` bool, which tokens the target wrote. Only positions count at which a draft would be made: the next
    token and the predicted token were both written by the target.
    """
    where = model.embedding.device
    found: list[list[float]] = []
    with autocast(where):
        hidden = torch.cat([model(moved(rows, where)) for rows in texts.split(rows_at_once(where))])
        for ahead in range(1, 2 + len(heads)):
            states = hidden[:, :-ahead]
            counts = torch.zeros(RANKS)
            # Which positions count: `ahead` 1 is the LM head's token t + 1, 2 is head 0's token t + 2, and so on.
            asked = (written[:, 1 : 1 + states.shape[1]] & written[:, ahead:]).to(where)
            answers = texts[:, ahead:].to(where)[asked]
            for state, answer in zip(states[asked].split(2048), answers.split(2048), strict=True):
                logits = (model.logits(state) if ahead == 1 else heads[ahead - 2](state, model.embedding)).float()
                # The rank of the token that came: how many tokens have a higher logit.
                ranks = (logits > logits.gather(1, answer[:, None])).sum(-1)
                counts += torch.bincount(ranks.clamp(max=RANKS), minlength=RANKS + 1)[:RANKS].cpu()
            found.append([round(share, 5) for share in (counts / max(1, len(answers))).tolist()])
    return found
