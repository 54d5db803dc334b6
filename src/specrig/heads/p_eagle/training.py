"""Training of the P-EAGLE head: each anchor drafts all its depths at once, as when it decodes (2602.01469, section 4).

The true entries of a text run as in EAGLE-3. Behind each anchor a, entry a, come masks of depth 1, 2, …: the one of
depth d is at position a + d, sees the true entries up to a and the anchor's masks up to its own, and drafts token a + d
+ 2. The bias of the token before, where there is one, is learnt from the true token a + d + 1. Deeper masks are learnt
from fewer anchors, those of a depth among those of the depth before (conditional drop-out, `anchors.kept_anchors`). So
one pass over a text costs some three times what it has entries.
Shapes: B sequences, T entries (tokens less one), K depths, D hidden, L entries and masks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from specrig.heads import acceptance
from specrig.heads.anchors import Copies, kept_anchors, position_weights
from specrig.heads.base import kept_share
from specrig.heads.eagle.training import trained_entries
from specrig.heads.eagle3.training import AuxStatesLearner
from specrig.heads.learner import States, Texts, draft_ids
from specrig.heads.losses import distribution_loss
from specrig.heads.markov import MarkovBias, biased
from specrig.heads.p_eagle import PEagle
from specrig.heads.p_eagle import module as checkpoint
from specrig.heads.shapes import read_mask
from specrig.heads.teacher import Teacher, autocast, moved, rows_at_once
from specrig.heads.trained_layer import attend, layer_tensors, queries_keys, tables, untrained_layer
from specrig.runtime.layer import DecoderLayer


class PEagleLearner(AuxStatesLearner):
    """P-EAGLE's head: EAGLE-3's, what a mask reads in place of the target's states, and perhaps further layers."""

    settings: PEagle

    def __init__(
        self, settings: PEagle, model: Teacher, teacher: Teacher, vocabulary: Tensor | None, seed: int
    ) -> None:
        super().__init__(settings, model, teacher, vocabulary, seed)
        drafted = None if vocabulary is None else len(vocabulary)
        self.config = checkpoint.head_config(model.config, drafted, settings.layers, settings.markov_rank)
        self.config.specrig = {"rollout": settings.rollout}  # without rollout it must not draft token by token
        self.markov = MarkovBias.untrained(model.vocabulary, len(self.lm_head), settings.markov_rank, seed + 2)
        generator = torch.Generator().manual_seed(seed + 1)
        self.mask_hidden = nn.Parameter(torch.randn(3 * model.hidden, generator=generator))
        """What stands for the target's states, divided like them."""

    def untrained_layers(self, generator: torch.Generator) -> list[DecoderLayer]:
        """See `AuxStatesLearner`."""
        D, further = self.model.hidden, range(self.settings.layers - 1)
        others = [untrained_layer(self.layer_config, D, generator, input_norm=True) for _ in further]
        return [*super().untrained_layers(generator), *others]

    def predicted(self, tokens: Tensor, states: Tensor, copies: Copies) -> Tensor:
        """What the entries of a text and the masks behind them say, in one pass, before the norm: `[B, L, D]`.

        tokens: `[B, T]`, those after the entries; states: `[B, T, ...]`, the target's; copies: of all texts, or of one text
        for all alike.
        """
        B, masks = len(tokens), copies.anchors.shape[1] - tokens.shape[1]
        embedded = F.embedding(F.pad(tokens, (0, masks), value=self.config.ptd_token_id), self.model.embedding)
        features, unknown = self.fuse(states), self.module.fuse(self.mask_hidden * self.fc.scale)
        features = torch.cat((features, unknown.to(features.dtype).expand(B, masks, -1)), 1)
        x, reads = self.module.entry(embedded, features)
        at, seen = tables(self.rotary, copies.positions), copies.seen()

        def attention(qk: Tensor, v: Tensor) -> Tensor:
            return attend(*queries_keys(qk, v, at), v, seen)

        for index, layer in enumerate(self.module.layers):
            x = layer(x, attention, None if index else reads)
        return x

    def loss(self, batch: Texts, states: Tensor, teacher_states: Tensor) -> Tensor:
        """The weighted mean over all that is drafted of the distance of the distributions (`losses.distribution_loss`)."""
        model, settings = self.model, self.settings
        kept = kept_anchors(trained_entries(batch), settings.k, self.generator)  # [K, B, T]
        copies = Copies.of(kept)
        row, index = copies.kept.nonzero(as_tuple=True)  # of each token that is drafted
        depth, entry = copies.depths[row, index], copies.anchors[row, index]
        with torch.no_grad(), autocast(model.where):
            likely = self.output(states[row, entry + depth + 1, -model.hidden :])
        with autocast(model.where):
            predicted = self.predicted(batch.tokens[:, 1:], states[:, :-1], copies)
            logits = self.logits(predicted[row, index])
            if self.markov is not None:  # an entry knows the token before anyway
                bias = self.markov(batch.tokens[row, entry + depth + 1])
                logits = logits + bias * (depth > 0).unsqueeze(-1)
        share = torch.tensor([kept_share(depth) for depth in range(settings.k)], device=model.where)
        decay: Tensor | None = None
        if settings.position_weights == "decay":
            decay = settings.step_decay ** torch.arange(settings.k, device=model.where)
        labels = draft_ids(batch.tokens[row, entry + depth + 2], self.vocabulary)
        weights = position_weights((depth, row, entry), kept, logits, labels, decay, share)
        loss = distribution_loss(logits, likely, settings.loss, weights)
        if settings.rollout > 1:  # its step 0 is depth 0 above
            known = predicted[:, : kept.shape[2]]
            loss = loss + self.unrolled(batch, states, settings.rollout, settings.step_decay, known=known)
        return loss

    @torch.no_grad()
    def measured(self, heldout: Texts, states: States) -> tuple[Tensor, Tensor]:
        """See `Learner`: a round that begins at entry t drafts tokens t + 2, t + 3, … from there."""
        depths, T, where = acceptance.DEPTH, heldout.tokens.shape[1] - 1, self.model.where
        right = torch.zeros(depths, len(heldout.tokens), T - 1, dtype=torch.bool)
        copies = Copies.every(T, depths, where)
        # A pass holds DEPTH times the entries, and its masks the square of that.
        for numbers in torch.arange(len(heldout.tokens)).split(max(1, rows_at_once(where) // 8)):
            rows = moved(heldout.tokens[numbers], where)
            with autocast(where):
                found = self.predicted(rows[:, 1:], states[numbers][:, :-1], copies)
                for depth in range(depths):
                    logits = self.logits(found[:, copies.at(depth)[: T - 1 - depth]])
                    bias = self.markov if depth else None
                    good = self.named(biased(logits, bias, rows[:, 1 + depth : T])) == rows[:, 2 + depth :]
                    right[depth, numbers, : T - 1 - depth] = good.cpu()
        return right, acceptance.rounds(heldout.written[:, 1:], depths)

    def tensors(self) -> dict[str, Tensor]:
        """See `Learner`."""
        found = super().tensors() | {"mask_hidden": (self.mask_hidden * self.fc.scale).unsqueeze(0)}
        for part in self._optional():
            found |= part
        return found

    def _optional(self) -> list[dict[str, Tensor]]:
        """The tensors of each part that a checkpoint may lack: the layers behind the first, and the bias."""
        found = [layer_tensors(self.module.layers[at], f"layers.{at}") for at in range(1, self.settings.layers)]
        return found if self.markov is None else [*found, self.markov.tensors()]

    def reading(self, config: Any) -> dict[str, tuple[Any, Any]]:
        """See `Learner`."""
        return super().reading(config) | {"ptd_token_id": (read_mask(config), self.config.ptd_token_id)}

    @torch.no_grad()
    def restore(self, found: dict[str, Tensor]) -> None:
        """See `Learner`; what stands for the target's states is divided like them. A bias and layers that the checkpoint
        lacks begin as they were made: they add nothing.
        """
        for part in self._optional():
            if found.keys().isdisjoint(part):
                found = found | part
        super().restore(found)
        self.mask_hidden.copy_(found["mask_hidden"][0].to(self.fc.scale.device) / self.fc.scale)

    def save(self, folder: Path) -> None:
        """See `Learner`."""
        checkpoint.save(folder, self.config, self.tensors())
