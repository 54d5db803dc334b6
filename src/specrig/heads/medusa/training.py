"""Training of heads that each draft one depth, and of Medusa's among them (Cai et al., 2401.10774, section 2.2).

The model is frozen (Medusa-1); `joint` trains it with its heads (Medusa-2). Shapes: B texts, T tokens, D hidden, V
vocabulary, Vd the heads', K heads, n positions.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from specrig.heads.acceptance import ahead
from specrig.heads.learner import Learner, States, Texts, draft_ids
from specrig.heads.losses import distillation
from specrig.heads.markov import MarkovBias, biased
from specrig.heads.medusa import DepthHeads, Medusa
from specrig.heads.medusa import module as checkpoint
from specrig.heads.medusa.module import MedusaHead
from specrig.heads.regression import Regression
from specrig.heads.teacher import Teacher, autocast, moved, rows_at_once
from specrig.heads.trained_layer import matrix

RANKS = 10
"""How many of a head's choices, from the first, have their accuracy measured."""
TOGETHER = 2048
"""Positions whose logits are held at once when heads are measured."""


class DepthLearner(Learner):
    """K heads in `heads`: at position t head i predicts token t + 2 + i, which the teacher predicts at t + 1 + i."""

    heads: Any
    ranks: list[list[float]]
    """Of every head, what `measured` found last: how often the choice of each rank is the token that came,
    `[K][RANKS]`.
    """

    def __init__(
        self, settings: DepthHeads, model: Teacher, teacher: Teacher, vocabulary: Tensor | None, seed: int
    ) -> None:
        super().__init__(settings, model, teacher, vocabulary, seed)
        on_device = None if vocabulary is None else vocabulary.to(model.where)
        self.output = model.output.subset(on_device)
        self.teaching = self.output if teacher is model else teacher.output.subset(on_device)
        """The teacher's LM head over the tokens that can be drafted."""
        drafted = len(self.output.weight)
        self.markov = MarkovBias.untrained(model.vocabulary, drafted, settings.markov_rank, seed)

    def shared_tensors(self) -> dict[str, Tensor]:
        """What belongs to no single head, under the checkpoint's names."""
        mapped = {} if self.vocabulary is None else {"token_map": self.vocabulary}
        return mapped | ({} if self.markov is None else self.markov.tensors())

    def sizes(self) -> dict[str, Any]:
        """What the checkpoint's configuration follows from."""
        return {
            "hidden": self.model.hidden,
            "vocabulary": self.model.vocabulary,
            "heads": len(self.heads),
            "drafted": None if self.vocabulary is None else len(self.vocabulary),
            "markov_rank": self.settings.markov_rank,
        }

    @abstractmethod
    def inputs(self, head: int, states: Tensor, tokens: Tensor, at: Tensor) -> Tensor:
        """What a head reads at n positions, `[n, R]`; arguments as for `logits`."""

    @abstractmethod
    def start(self, head: int, linear: Tensor) -> None:
        """Begin a head as `linear` `[D, R]`, a map from what it reads to the state that its token follows from."""

    @torch.no_grad()
    def prepare(self, texts: Texts, states: States) -> None:
        """Begin each head as the best linear map (ridge regression)."""
        D = self.model.hidden
        for head in range(len(self.heads)):
            found: Regression | None = None
            for rows in torch.arange(len(texts.tokens)).split(rows_at_once(self.model.where)):
                if found and found.enough:
                    break
                hidden, tokens = states[rows][..., -D:], moved(texts.tokens[rows], self.model.where)
                at = moved(drafting(texts.written[rows], head), self.model.where)
                read = self.inputs(head, hidden, tokens, at)
                found = found or Regression(read.shape[1], D, self.model.where)
                found.add(read, hidden[at[:, 0], at[:, 1] + head + 1])
            if found and (solution := found.solution()):
                self.start(head, solution[1] / solution[0])

    @abstractmethod
    def logits(self, head: int, states: Tensor, tokens: Tensor, at: Tensor) -> Tensor:
        """What a head says at n positions: `[n, Vd]`. states: `[B, T, D]`; tokens: `[B, T]`; at: rows and positions,
        `[n, 2]`.
        """

    def biased(self, head: int, states: Tensor, tokens: Tensor, at: Tensor) -> Tensor:
        """`logits`, with the bias of the token before the predicted one."""
        before = tokens[at[:, 0], at[:, 1] + head + 1]
        return biased(self.logits(head, states, tokens, at), self.markov, before)

    def loss(self, batch: Texts, states: Tensor, teacher_states: Tensor) -> Tensor:
        """The sum over heads i of decay^i times the head's loss (2401.10774, equation 1)."""
        B, T = batch.tokens.shape
        follows = F.pad(batch.written[:, 1:], (0, 1))  # [B, T]: the token after t was written by the target
        with autocast(self.model.where), torch.no_grad():
            goal = self.teaching(teacher_states[follows])
        number = torch.full((B, T), -1, device=states.device)  # a position's row in `goal`
        number[follows] = torch.arange(len(goal), device=states.device)
        ids = draft_ids(batch.tokens, self.vocabulary)
        total = torch.zeros((), device=states.device)
        for head in range(len(self.heads)):
            at = drafting(batch.written, head)
            row, position = at.unbind(-1)
            with autocast(self.model.where):
                logits = self.biased(head, states, batch.tokens, at)
            goals, labels = goal[number[row, position + head + 1]], ids[row, position + head + 2]
            total = total + self.settings.decay**head * distillation(logits, goals, labels, self.settings.kl_weight)
        return total

    @torch.no_grad()
    def measured(self, heldout: Texts, states: States) -> tuple[Tensor, Tensor]:
        """See `Learner`: a round at position t drafts token t + 2 + i by head i. A position counts where the next token
        and the predicted one were both chosen by the target.
        """
        depths = range(len(self.heads))
        evaluated = torch.stack([ahead(heldout.written, head + 2) & ahead(heldout.written, 1) for head in depths])
        right, counts = torch.zeros_like(evaluated), torch.zeros(len(depths), RANKS)
        for rows in torch.arange(len(heldout.tokens)).split(rows_at_once(self.model.where)):
            hidden, tokens = states[rows], moved(heldout.tokens[rows], self.model.where)
            for head in depths:
                at = evaluated[head, rows].nonzero()
                for some in at.split(TOGETHER):
                    row, position = some.unbind(-1)
                    with autocast(self.model.where):
                        logits = self.biased(head, hidden, tokens, moved(some, self.model.where))
                    answers = draft_ids(heldout.tokens[rows[row], position + head + 2], self.vocabulary)
                    right[head, rows[row], position] = logits.argmax(-1).cpu() == answers
                    counts[head] += rank_counts(logits, answers)
        self.ranks = [shares(counts[head], evaluated[head]) for head in depths]
        return right, evaluated


def drafting(written: Tensor, head: int) -> Tensor:
    """Rows and positions `[n, 2]` at which a head drafts: the target wrote the next token and the head's own."""
    follows = F.pad(written[:, 1:], (0, 1))
    return (follows[:, : -head - 2] & follows[:, head + 1 : -1]).nonzero()


def rank_counts(logits: Tensor, answers: Tensor) -> Tensor:
    """Counts `[RANKS]`: entry r is the number of answers `[n]` for which r tokens have a higher logit in `[n, Vd]`. An
    answer below 0 has no rank.
    """
    known, own = logits[(answers >= 0).to(logits.device)].float().cpu(), answers[answers >= 0]
    ranks = (known > known.gather(1, own[:, None])).sum(-1)
    return torch.bincount(ranks.clamp(max=RANKS), minlength=RANKS + 1)[:RANKS].float()


def shares(counts: Tensor, evaluated: Tensor) -> list[float]:
    """`rank_counts` as shares of the evaluated positions."""
    return [round(share, 5) for share in (counts / max(1, int(evaluated.sum()))).tolist()]


class Output(nn.Module):
    """An LM head of its own, which begins as the model's."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.lm_head = nn.Parameter(weight.float().clone())  # the optimiser knows it by this name

    def forward(self, state: Tensor) -> Tensor:
        """`[..., D]` -> `[..., Vd]`."""
        return F.linear(state, self.lm_head)


class MedusaLearner(DepthLearner):
    """Medusa heads on a frozen model: the target, or a draft with the target as its teacher."""

    order = 5
    first: list[float]
    """`ranks` of the model's own LM head and token t + 1."""

    def __init__(
        self, settings: Medusa, model: Teacher, teacher: Teacher, vocabulary: Tensor | None, seed: int
    ) -> None:
        super().__init__(settings, model, teacher, vocabulary, seed)
        self.shared = not settings.owns(len(self.output.weight))
        D, weight = model.hidden, self.output.weight
        # Residual blocks begin at zero, LM heads as the model's and projections as none, or as `start` says.
        self.blocks = nn.ModuleList(matrix(torch.zeros(D, D), torch.zeros(D)) for _ in range(settings.heads))
        self.heads = nn.ModuleList(
            MedusaHead([block], matrix(torch.eye(D)) if settings.projections else None) for block in self.blocks
        )
        own = () if self.shared else range(settings.heads)
        self.outputs: Any = nn.ModuleList(Output(weight) for _ in own)

    def inputs(self, head: int, states: Tensor, tokens: Tensor, at: Tensor) -> Tensor:
        """See `DepthLearner`; Medusa reads no tokens."""
        return states[at[:, 0], at[:, 1]]

    def start(self, head: int, linear: Tensor) -> None:
        """See `DepthLearner`: an LM head of its own or the projection takes the map; without both, it begins as the
        model.
        """
        if not self.shared:
            self.outputs[head].lm_head.copy_(self.output.weight.float() @ linear)
        elif self.settings.projections:
            self.heads[head].projection.weight.copy_(linear)

    def logits(self, head: int, states: Tensor, tokens: Tensor, at: Tensor) -> Tensor:
        """See `DepthLearner`."""
        state = self.heads[head](self.inputs(head, states, tokens, at).to(torch.float32))
        return self.output(state) if self.shared else self.outputs[head](state)

    @torch.no_grad()
    def measured(self, heldout: Texts, states: States) -> tuple[Tensor, Tensor]:
        """See `DepthLearner`, and how often the model's own LM head is right."""
        counts, evaluated = torch.zeros(RANKS), ahead(heldout.written, 1)
        for rows in torch.arange(len(heldout.tokens)).split(rows_at_once(self.model.where)):
            answers, hidden = heldout.tokens[rows].roll(-1, 1)[evaluated[rows]], states[rows][evaluated[rows]]
            for state, answer in zip(hidden.split(TOGETHER), answers.split(TOGETHER), strict=True):
                with autocast(self.model.where):
                    counts += rank_counts(self.model.logits(state), answer)
        self.first = shares(counts, evaluated)
        return super().measured(heldout, states)

    def tensors(self) -> dict[str, Tensor]:
        """See `Learner`."""
        found = self.shared_tensors()
        for index, block in enumerate(self.blocks):
            found |= {f"blocks.{index}.layers.0.{part}": tensor for part, tensor in block.named_parameters()}
        if self.settings.projections:
            found |= {f"projections.{at}.weight": head.projection.weight for at, head in enumerate(self.heads)}
        found |= {f"lm_heads.{index}.weight": output.lm_head for index, output in enumerate(self.outputs)}
        stored = self.shared and not self.settings.projections
        return found | ({"lm_head.weight": self.output.weight} if stored else {})

    def save(self, folder: Path) -> None:
        """See `Learner`."""
        measured = {"accuracy": self.ranks, "first": self.first}
        parts = {"shared": self.shared, "projections": self.settings.projections}
        config = checkpoint.heads_config(**self.sizes(), **parts, measured=measured)
        checkpoint.save(folder, config, self.tensors())
