"""Training of the P-EAGLE head: each anchor drafts all its depths at once, as when it decodes (2602.01469, section 4).

The true entries of a text run as in EAGLE-3. Behind each anchor a, entry a, come masks of depth 1, 2, …: the one of
depth d is at position a + d, sees the true entries up to a and the anchor's masks up to its own, and drafts token a + d
+ 2. The bias of the token before, where there is one, is learnt from the true token a + d + 1. Deeper masks are learnt
from fewer anchors, those of a depth among those of the depth before (conditional drop-out, `losses.kept_anchors`). So
one pass over a text costs some three times what it has entries.
Shapes: B sequences, T entries (tokens less one), K depths, D hidden, N entries and masks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from specrig.heads import acceptance
from specrig.heads.base import kept_share
from specrig.heads.eagle.training import trained_entries
from specrig.heads.eagle3.training import AuxStatesLearner
from specrig.heads.learner import States, Texts, draft_ids
from specrig.heads.losses import d_pace, distribution_loss, kept_anchors, probabilities, side_by_side
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

    def predicted(self, tokens: Tensor, states: Tensor, anchors: list[Tensor]) -> list[Tensor]:
        """What the entries `[B, T, D]` and each depth's masks `[B, n, D]` say, in one pass, before the norm.

        tokens: `[B, T]`, those after the entries; states: `[B, T, ...]`, the target's; anchors: of depth 1, 2, … the
        entries `[B, n]` that masks hang on.
        """
        B, T = tokens.shape
        widths = [T, *(each.shape[1] for each in anchors)]
        anchor = torch.cat((torch.arange(T, device=tokens.device).expand(B, T), *anchors), 1)  # [B, N]
        depth = torch.arange(len(widths), device=tokens.device).repeat_interleave(
            torch.tensor(widths, device=tokens.device)
        )
        masks = anchor.shape[1] - T
        embedded = F.embedding(F.pad(tokens, (0, masks), value=self.config.ptd_token_id), self.model.embedding)
        features, unknown = self.fuse(states), self.module.fuse(self.mask_hidden * self.fc.scale)
        x, reads = self.module.entry(
            embedded, torch.cat((features, unknown.to(features.dtype).expand(B, masks, -1)), 1)
        )
        at = tables(self.rotary, anchor + depth)
        # seen[b, i, j]: j is a true entry up to i's anchor, or a mask of the same anchor up to i's own depth.
        own = (anchor.unsqueeze(1) == anchor.unsqueeze(2)) & (depth <= depth.unsqueeze(1))
        seen = (own | ((anchor.unsqueeze(1) <= anchor.unsqueeze(2)) & (depth == 0))).unsqueeze(1)

        def attention(qk: Tensor, v: Tensor) -> Tensor:
            return attend(*queries_keys(qk, v, at), v, seen)

        for index, layer in enumerate(self.module.layers):
            x = layer(x, attention, None if index else reads)
        return list(x.split(widths, 1))

    def loss(self, batch: Texts, states: Tensor, teacher_states: Tensor) -> Tensor:
        """The weighted mean over all that is drafted of the distance of the distributions (`losses.distribution_loss`)."""
        model, settings = self.model, self.settings
        kept = kept_anchors(trained_entries(batch), settings.k, self.generator)  # [K, B, T]
        masks = [side_by_side(some) for some in kept[1:]]
        depth, row, entry = kept.nonzero(as_tuple=True)  # of each token that is drafted: by depth, row and anchor
        with torch.no_grad(), autocast(model.where):
            likely = self.output(states[row, entry + depth + 1, -model.hidden :])
        with autocast(model.where):
            first, *deeper = self.predicted(batch.tokens[:, 1:], states[:, :-1], [anchors for anchors, _ in masks])
            found = [first[kept[0]], *(each[real] for each, (_, real) in zip(deeper, masks, strict=True))]
            logits = self.logits(torch.cat(found))
            if self.markov is not None:  # a mask's logits follow those of the true entries
                known, masked = logits.split([len(found[0]), len(logits) - len(found[0])])
                before = batch.tokens[row, entry + depth + 1][len(known) :]
                logits = torch.cat((known, biased(masked, self.markov, before)))
        # A depth that is learnt from fewer anchors weighs as if it were learnt from all.
        share = torch.tensor([kept_share(depth) for depth in range(settings.k)], device=model.where)
        if settings.position_weights == "decay":
            decay = settings.step_decay ** torch.arange(settings.k, device=model.where)
            weights = (decay / share)[depth]
        else:
            right = torch.zeros(kept.shape, device=model.where)
            right[kept] = probabilities(logits, draft_ids(batch.tokens[row, entry + depth + 2], self.vocabulary))
            weights = d_pace(right, kept / share.view(-1, 1, 1))[kept]
        loss = distribution_loss(logits, likely, settings.loss, weights)
        if settings.rollout > 1:  # its step 0 is depth 0 above
            loss = loss + self.unrolled(batch, states, settings.rollout, settings.step_decay, known=first)
        return loss

    @torch.no_grad()
    def measured(self, heldout: Texts, states: States) -> tuple[Tensor, Tensor]:
        """See `Learner`: a round that begins at entry t drafts tokens t + 2, t + 3, … from there."""
        right: list[list[Tensor]] = [[] for _ in range(acceptance.DEPTH)]
        T = heldout.tokens.shape[1] - 1
        # A pass holds DEPTH times the entries, and its masks the square of that.
        for numbers in torch.arange(len(heldout.tokens)).split(max(1, rows_at_once(self.model.where) // 8)):
            rows = moved(heldout.tokens[numbers], self.model.where)
            every = torch.arange(T, device=self.model.where).expand(len(rows), T)
            with autocast(self.model.where):
                found = self.predicted(rows[:, 1:], states[numbers][:, :-1], [every] * (acceptance.DEPTH - 1))
                for depth, each in enumerate(found):
                    logits = self.logits(each[:, : T - 1 - depth])
                    bias = self.markov if depth else None
                    good = self.named(biased(logits, bias, rows[:, 1 + depth : T])) == rows[:, 2 + depth :]
                    right[depth].append(F.pad(good, (0, depth)).cpu())
        evaluated = acceptance.rounds(heldout.written[:, 1:], acceptance.DEPTH)
        return torch.stack([torch.cat(parts) for parts in right]), evaluated

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
