"""Training of a draft model that drafts in one pass (PARD, 2504.18583, section 3.2).

Each position of a text is an anchor. At depth 0 the draft predicts the token after it, as any model. At depth d a copy
of the anchor, a mask token d positions on, predicts the token d + 1 positions after it; it sees the context up to the
anchor and the anchor's masks of smaller depth, as when it drafts. Conditional drop-out keeps few of the deeper copies.
Shapes: B texts, T anchors each, K depths, L positions of a pass (T tokens, then the copies), D hidden, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specrig.heads.acceptance import DEPTH, rounds
from specrig.heads.anchors import Copies, kept_anchors
from specrig.heads.base import TrainingError
from specrig.heads.learner import Learner, States, Texts, draft_ids
from specrig.heads.losses import distillation
from specrig.heads.pard import Pard
from specrig.heads.pard import module as checkpoint
from specrig.heads.teacher import LMHead, Teacher, autocast, moved, outer, rows_at_once


class PardLearner(Learner):
    """A copy of the draft model, all of whose weights learn. It reads tokens; the target's states give the labels."""

    order = 8
    reads_teacher = True

    def __init__(self, settings: Pard, model: Teacher, teacher: Teacher, vocabulary: Tensor | None, seed: int) -> None:
        """Raises TrainingError for a mask token that the draft does not have."""
        super().__init__(settings, model, teacher, vocabulary, seed)
        self.draft = copy.deepcopy(model.model).float().requires_grad_(True)
        mask = settings.mask_token
        if mask is None:
            mask = next(token for token in reversed(range(model.vocabulary)) if token not in model.eos)
        if mask >= model.vocabulary:
            raise TrainingError(f"pard.mask_token: the draft has no token {mask}, only {model.vocabulary}")
        self.mask = mask
        noted = (getattr(model.config, "specrig", None) or {}).get("drafted")
        if vocabulary is None and noted is not None:  # what the draft was trained to draft
            self.vocabulary = torch.tensor(noted)
        self.noted: dict[str, Any] = {"target_vocabulary": teacher.vocabulary}
        if self.vocabulary is not None:
            self.noted["drafted"] = self.vocabulary.tolist()
        elif model.vocabulary != teacher.vocabulary:  # one embedding has more padding
            self.vocabulary = torch.arange(min(model.vocabulary, teacher.vocabulary))
        self.on_device = None if self.vocabulary is None else self.vocabulary.to(model.where)
        self.teaching = teacher.output.subset(self.on_device)

    def outer(self) -> Iterable[Tensor]:
        """See `Learner`."""
        return outer(self.draft)

    def states(self, tokens: Tensor, copies: Copies) -> Tensor:
        """The draft's states after the final norm at each position of a pass over texts `[B, T]`: `[B, L, D]`.

        copies: of all texts, or of one text for all alike.
        """
        read = tokens.gather(1, copies.anchors.expand(len(tokens), -1))
        read = torch.where(copies.depths == 0, read, self.mask)
        seen = copies.seen()
        bias = torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, torch.finfo(torch.bfloat16).min)
        with autocast(self.model.where):
            hidden: Tensor = self.draft.base_model(
                input_ids=read, position_ids=copies.positions, attention_mask=bias, use_cache=False
            ).last_hidden_state
        return hidden

    def output(self) -> LMHead:
        """The draft's LM head over the tokens that it drafts."""
        head = self.draft.get_output_embeddings()
        return LMHead(head.weight, getattr(head, "bias", None)).subset(self.on_device)

    def loss(self, batch: Texts, states: Tensor, teacher_states: Tensor) -> Tensor:
        """The mean over all copies that are kept, nats a token."""
        written = batch.written[:, 1:]
        copies = Copies.of(kept_anchors(written, self.settings.k, self.generator))
        hidden, positions, output = self.states(batch.tokens[:, :-1], copies), copies.positions, self.output()
        with autocast(self.model.where), torch.no_grad():
            goal = self.teaching(teacher_states[:, :-1][written])
        number = torch.full(written.shape, -1, device=written.device)  # a position's row in `goal`
        number[written] = torch.arange(len(goal), device=written.device)
        ids, total = draft_ids(batch.tokens[:, 1:], self.vocabulary), hidden.new_zeros(())
        for depth in range(self.settings.k):  # one by one: logits of all are large
            row, index = (copies.kept & (copies.depths == depth)).nonzero().unbind(-1)
            if not len(row):
                continue
            position = positions[row, index]
            with autocast(self.model.where):
                logits = output(hidden[row, index])
            own = distillation(logits, goal[number[row, position]], ids[row, position], self.settings.kl_weight)
            total = total + own * len(row)
        return total / copies.kept.sum()

    @torch.no_grad()
    def measured(self, heldout: Texts, states: States) -> tuple[Tensor, Tensor]:
        """See `Learner`: a round at position t drafts tokens t + 1, t + 2, …, in one pass."""
        depths, T, where = min(self.settings.k, DEPTH), heldout.tokens.shape[1] - 1, self.model.where
        copies = Copies.every(T, depths, where)
        right, output = torch.zeros(depths, len(heldout.tokens), T, dtype=torch.bool), self.output()
        for rows in torch.arange(len(heldout.tokens)).split(rows_at_once(where)):
            tokens = moved(heldout.tokens[rows], where)
            hidden, ids = self.states(tokens[:, :-1], copies), draft_ids(tokens[:, 1:], self.vocabulary)
            for depth in range(depths):
                index = copies.at(depth)
                with autocast(where):
                    chosen = output(hidden[:, index]).argmax(-1)
                right[depth, rows, : len(index)] = (chosen == ids[:, copies.positions[0, index]]).cpu()
        return right, rounds(heldout.written, depths)

    def tensors(self) -> dict[str, Tensor]:
        """See `Learner`."""
        return dict(self.draft.named_parameters())

    def save(self, folder: Path) -> None:
        """See `Learner`."""
        checkpoint.save(folder, self.draft, self.mask, **self.noted)
