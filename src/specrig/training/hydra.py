"""Training of Hydra heads on a frozen target (Ankner et al., 2402.05109, section 4): each learns with the right tokens
before it.

The target's hidden states are computed once. The text is part corpus, part what the target itself wrote. The paper's
teacher loss is the cross-entropy with the target's distribution; here it is the KL divergence, which differs by a
constant. Shapes: N sequences, T tokens, D hidden, V vocabulary, Vd the heads', K heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from specrig.heads import hydra as checkpoint
from specrig.training import acceptance, teacher
from specrig.training.acceptance import ahead
from specrig.training.hydra_recipe import HydraTraining
from specrig.training.losses import distillation
from specrig.training.medusa_heads import RANKS
from specrig.training.optimizer import Optimizer
from specrig.training.recipe import Optimisation, Recipe
from specrig.training.run import training
from specrig.training.states import StoredStates
from specrig.training.target_text import (
    Texts,
    frequent,
    learnt_from,
    places,
    present,
    read_text,
    row_batches,
    with_corpus,
)
from specrig.training.teacher import Teacher
from specrig.training.trainer import autocast, moved, place

TOGETHER = 2048
"""Positions whose logits are held at once when heads are measured."""


class Head(nn.Module):
    """One head while it trains. At first its state is the target's: what it reads of the tokens weighs nothing yet."""

    def __init__(self, D: int, inputs: int) -> None:
        super().__init__()
        self.linear = nn.Parameter(torch.zeros(D, inputs * D))
        self.bias = nn.Parameter(torch.zeros(D))
        self.res_connection = nn.Parameter(torch.cat((torch.eye(D), torch.zeros(D, (inputs - 1) * D)), 1))

    def forward(self, inputs: Tensor) -> Tensor:
        """The joined state and embeddings `[n, (i + 2) D]` -> states `[n, D]`."""
        inputs = inputs.to(self.bias.dtype)
        return F.linear(inputs, self.res_connection) + F.silu(F.linear(inputs, self.linear, self.bias))


class Heads(nn.ModuleList):
    """K heads of one target. `output`: its LM head over the tokens `drafted` `[Vd]` that the heads can draft; None:
    all.
    """

    def __init__(self, target: Teacher, count: int, drafted: Tensor | None) -> None:
        super().__init__(Head(target.hidden, index + 2) for index in range(count))
        self.drafted = drafted
        self.embedding = target.embedding
        self.output = target.output.among(None if drafted is None else drafted.to(target.where))

    def logits(self, index: int, hidden: Tensor, tokens: Tensor, at: Tensor) -> Tensor:
        """What head `index` says at n positions: `[n, Vd]`. hidden: `[B, T, D]`; tokens: `[B, T]`; at: rows and
        positions, `[n, 2]`.
        """
        row, position = at.unbind(-1)
        before = [F.embedding(tokens[row, position + step], self.embedding) for step in range(1, index + 2)]
        return self.output(self[index](torch.cat((hidden[row, position], *before), -1)))

    def tensors(self) -> dict[str, Tensor]:
        """The weights under the checkpoint's names."""
        found: dict[str, Tensor] = {} if self.drafted is None else {"token_map": self.drafted}
        for index, head in enumerate(self):
            assert isinstance(head, Head)
            found |= {f"heads.{index}.{part}.weight": getattr(head, part) for part in ("linear", "res_connection")}
            found[f"heads.{index}.linear.bias"] = head.bias
        return found


def heads_loss(heads: Heads, target: Teacher, hidden: Tensor, batch: Texts, settings: HydraTraining) -> Tensor:
    """The sum over heads i of decay^i times the head's loss.

    batch: B texts of T tokens; hidden: the target's states of them, `[B, T, D]`. At position t head i predicts token t
    + 2 + i, which the target predicts at position t + 1 + i. Only what the target wrote is learnt: those are the places
    at which the heads will draft.
    """
    B, T = batch.tokens.shape
    said = F.pad(batch.written[:, 1:], (0, 1))  # [B, T]: the token after t was written by the target
    with torch.no_grad():
        goal = target.output.among(heads.drafted)(hidden[said])
    number = torch.full((B, T), -1, device=hidden.device)  # a position's row in `goal`
    number[said] = torch.arange(len(goal), device=hidden.device)
    known = places(batch.tokens, heads.drafted)
    total = torch.zeros((), device=hidden.device)
    for index in range(len(heads)):
        at = (said[:, : -index - 2] & said[:, index + 1 : -1]).nonzero()  # token t + 2 + index is there
        row, position = at.unbind(-1)
        logits = heads.logits(index, hidden, batch.tokens, at)
        rows, labels = number[row, position + index + 1], known[row, position + index + 2]
        total = total + settings.decay**index * distillation(logits, goal[rows], labels, settings.kl_weight)
    return total


def train_heads(
    recipe: Recipe, corpus_dir: Path, models: Path, target: Path, progress: bool, device: str = "cpu"
) -> None:
    """Train heads on the frozen model in `target` and write the folder `models`/hydra (config.json, model.safetensors).

    Also writes its `training.jsonl`: the loss, and at every evaluation the acceptance to expect (`acceptance.report`).
    Raises CorpusError for a missing corpus, TrainingError when there is no model or text, or the loss is not finite.
    """
    settings, where, text = recipe.hydra, place(device), read_text(models)
    tutor = teacher.load(present(target, "target"), where)
    heads = Heads(tutor, settings.heads, frequent(text.train, settings.draft_vocabulary, tutor.vocabulary)).to(where)
    schedule = Optimisation(steps=settings.steps, batch=settings.batch, lr=settings.lr, matrix_lr=settings.matrix_lr)
    optimizer, key = Optimizer(heads, schedule), learnt_from(recipe, corpus_dir, models, target)
    with training(models / "hydra", settings.steps, progress, key) as run:
        run.begin({"heads": (heads, optimizer)})
        texts = with_corpus(text.train, settings.corpus_sequences, corpus_dir, target, recipe.seed + 3)
        hidden = StoredStates(run.folder, target, tutor, texts.tokens)  # once: a step then costs the heads alone
        batches = row_batches(len(texts.tokens), settings.batch, recipe.seed + 7)
        for step, rows in islice(enumerate(batches, 1), run.done, settings.steps):
            batch = Texts(moved(texts.tokens[rows], where), moved(texts.written[rows], where))
            given = hidden[rows]
            with autocast(where):
                loss = heads_loss(heads, tutor, given, batch, settings)
            run.take_step(step, [loss], tokens=step * batch.tokens.numel(), lr=settings.lr)
            if step in settings.evaluated():
                found = acceptance.report(*measured(heads, tutor, text.heldout))
                run.curve.write(step, **found)
                run.curve.say(acceptance.told(found))
        config = checkpoint.heads_config(
            hidden=tutor.hidden,
            vocabulary=tutor.vocabulary,
            heads=settings.heads,
            drafted=None if heads.drafted is None else len(heads.drafted),
            measured={"accuracy": rank_accuracies(heads, tutor, text.heldout)},
        )
        checkpoint.save(run.folder, config, heads.tensors())


def _asked(heads: Heads, target: Teacher, heldout: Texts) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Of every head: where a draft would be made, `[N, T]` bool, and there the positions `[n, 2]`, the target's states,
    and the tokens that came, `[n]`.
    """
    hidden, choices = target.states_of(heldout.tokens), heldout.written
    for index in range(len(heads)):
        there = ahead(choices, index + 2) & ahead(choices, 1)
        at = there.nonzero()
        yield there, at, hidden, heldout.tokens[at[:, 0], at[:, 1] + index + 2]


@torch.no_grad()
def measured(heads: Heads, target: Teacher, heldout: Texts) -> tuple[Tensor, Tensor]:
    """For `acceptance.report`: a round at position t drafts token t + 2 + i by head i; `[K, N, T]`. heldout: written
    greedily.
    """
    right, asked = [], []
    for index, (there, at, hidden, answers) in enumerate(_asked(heads, target, heldout)):
        good = torch.zeros_like(there)
        choices = [logits.argmax(-1).cpu() for logits in _said(heads, index, hidden, heldout, at, target)]
        good[there] = torch.cat(choices) == places(answers, heads.drafted)
        right.append(good)
        asked.append(there)
    return torch.stack(right), torch.stack(asked)


@torch.no_grad()
def rank_accuracies(heads: Heads, target: Teacher, heldout: Texts) -> list[list[float]]:
    """How often the choice of each rank of each head is the token that came, the right ones before it, `[K][RANKS]`."""
    found = []
    for index, (_, at, hidden, answers) in enumerate(_asked(heads, target, heldout)):
        counts = torch.zeros(RANKS)
        known = places(answers, heads.drafted).split(TOGETHER)
        for logits, own in zip(_said(heads, index, hidden, heldout, at, target), known, strict=True):
            logits, own = logits[own >= 0].float().cpu(), own[own >= 0]
            ranks = (logits > logits.gather(1, own[:, None])).sum(-1)
            counts += torch.bincount(ranks.clamp(max=RANKS), minlength=RANKS + 1)[:RANKS]
        found.append([round(share, 5) for share in (counts / max(1, len(answers))).tolist()])
    return found


def _said(heads: Heads, index: int, hidden: Tensor, texts: Texts, at: Tensor, target: Teacher) -> Iterator[Tensor]:
    """The head's logits at the positions `at`, some at a time."""
    tokens = moved(texts.tokens, target.where)
    for some in at.split(TOGETHER):
        with autocast(target.where):
            yield heads.logits(index, hidden, tokens, moved(some, target.where))
