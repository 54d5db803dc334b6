"""Training of the DFlash head: blocks begin at random positions of the target's text (2602.06036, section 4).

The block of anchor a holds token a and k masks; it sees the features of the positions before a and all of itself. The
mask j positions behind a drafts token a + j. The loss is the weighted KL divergence from the target's distribution
there (the paper has the cross-entropy of the token). Embedding and LM head are the target's, frozen. Shapes: B
sequences, T tokens, A anchors, n = k + 1 tokens of a block, D hidden, F auxiliary states.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specrig.heads import acceptance
from specrig.heads.acceptance import rounds
from specrig.heads.anchors import kept_anchors, position_weights, random_ranks, side_by_side
from specrig.heads.dflash import DFlash
from specrig.heads.dflash import module as checkpoint
from specrig.heads.dflash.module import DFlashLayers
from specrig.heads.learner import Learner, States, Texts, draft_ids
from specrig.heads.losses import distribution_loss
from specrig.heads.shapes import dflash_config, first_drafting
from specrig.heads.teacher import Teacher, autocast, moved, rows_at_once
from specrig.heads.trained_layer import (
    SideBySide,
    attend,
    layer_tensors,
    normal,
    queries_keys,
    rotated,
    tables,
    untrained_layer,
)

_TOGETHER = 64
"""Anchors whose blocks run at once when the head is measured: they see only themselves, but cost the square."""


class Drafted(NamedTuple):
    """What N tokens of blocks draft in a step. before: the true tokens before those that are drafted, `[N]`."""

    states: Tensor
    """`[N, D]`, after the norm."""
    before: Tensor
    logits: Tensor
    likely: Tensor
    """The target's logits, `[N, Vd]`."""
    weights: Tensor
    """Of each in the loss, `[N]`."""


class DFlashLearner(Learner):
    """DFlash's head. At first its layers add nothing."""

    settings: DFlash

    def __init__(
        self, settings: DFlash, model: Teacher, teacher: Teacher, vocabulary: Tensor | None, seed: int
    ) -> None:
        super().__init__(settings, model, teacher, vocabulary, seed)
        self.config = checkpoint.head_config(model.config, settings.layers, settings.k, vocabulary)
        self.output = model.output.subset(None if vocabulary is None else vocabulary.to(model.where))
        self.rotary = LlamaRotaryEmbedding(self.config)
        D = model.hidden
        generator = torch.Generator().manual_seed(seed)
        fc = normal(D, len(self.aux_layers) * D, generator)
        layers = [
            untrained_layer(self.config, D, generator, input_norm=True, head_norms=True) for _ in range(settings.layers)
        ]
        context = SideBySide(product for layer in layers for product in layer.qkv[1:])
        norms = nn.Parameter(torch.ones(D)), nn.Parameter(model.final_norm().float().clone())
        self.module = DFlashLayers(fc, layers, context, *norms)

    def predicted(self, tokens: Tensor, states: Tensor, anchors: Tensor, k: int) -> Tensor:
        """What the k tokens of each block that draft say, after the norm: `[B, A, k, D]`.

        tokens: `[B, T]`; states: `[B, T, (F + 1) D]`, the target's; anchors: `[B, A]` positions.
        """
        B, T = tokens.shape
        A, first = anchors.shape[1], first_drafting(self.config)
        n = k + first
        features = self.module.fuse(states[..., : len(self.aux_layers) * self.model.hidden].float())
        mask = dflash_config(self.config)["mask_token_id"]
        block = F.pad(tokens.gather(1, anchors).unsqueeze(-1), (0, n - 1), value=mask)
        x = F.embedding(block.flatten(1), self.model.embedding).to(features.dtype)  # [B, A · n, D]
        there = torch.arange(T, device=tokens.device)
        own = (anchors.unsqueeze(-1) + torch.arange(n, device=tokens.device)).flatten(1)
        behind, at = tables(self.rotary, there), tables(self.rotary, own)
        number = torch.arange(A, device=tokens.device).repeat_interleave(n)
        # [B, A · n, T + A · n]: a block's tokens see the features before its anchor, and their own block.
        seen = torch.cat(
            (
                there < anchors.repeat_interleave(n, 1).unsqueeze(-1),
                (number == number.unsqueeze(-1)).expand(B, -1, -1),
            ),
            -1,
        ).unsqueeze(1)

        def attention(context: tuple[Tensor, Tensor], qk: Tensor, v: Tensor) -> Tensor:
            q, k = queries_keys(qk, v, at)
            keys, values = context
            return attend(q, torch.cat((rotated(keys, behind), k), 1), torch.cat((values, v), 1), seen)

        for layer, context in zip(self.module.layers, self.module.keys_values(features), strict=True):
            x = layer(x, partial(attention, context))
        return self.module.read_out(x.unflatten(1, (A, n))[:, :, first:])

    def logits(self, states: Tensor, before: Tensor) -> Tensor:
        """Of what is drafted from `states` `[..., D]` behind the tokens `before` `[...]`: `[..., Vd]`."""
        return self.output(states)

    def loss(self, batch: Texts, states: Tensor, teacher_states: Tensor) -> Tensor:
        """The weighted mean over the masks of the distance of the distributions (`losses.distribution_loss`)."""
        drafted = self.drafted(batch, states)
        return distribution_loss(drafted.logits, drafted.likely, self.settings.loss, drafted.weights)

    def drafted(self, batch: Texts, states: Tensor) -> Drafted:
        """What some blocks draft, those of a random share of the anchors."""
        model, settings = self.model, self.settings
        # written[d]: whether the target wrote the token d + 1 behind each position, and those between: [K, B, T].
        written = kept_anchors(batch.written[:, 1:], settings.k)
        ranks = random_ranks(written[0], self.generator)
        count = (settings.anchors * written[0].sum(-1, keepdim=True)).ceil()
        anchors, real = side_by_side(written[0] & (ranks < count))
        kept = written.gather(-1, anchors.expand(settings.k, -1, -1)) & real  # [K, B, A]
        depth, row, block = kept.nonzero(as_tuple=True)
        position = anchors[row, block] + depth  # whose state says what follows
        with torch.no_grad(), autocast(model.where):
            likely = self.output(states[row, position, -model.hidden :])
        with autocast(model.where):
            found = self.predicted(batch.tokens, states, anchors, settings.k)
            said, before = found[row, block, depth], batch.tokens[row, position]
            logits = self.logits(said, before)
        decay: Tensor | None = None
        share = torch.ones(settings.k, device=model.where)
        if settings.position_weights == "decay":
            decay = torch.exp(-torch.arange(settings.k, device=model.where) / settings.gamma)
        labels = draft_ids(batch.tokens[row, position + 1], self.vocabulary)
        weights = position_weights((depth, row, block), kept, logits, labels, decay, share)
        return Drafted(said, before, logits, likely, weights)

    @torch.no_grad()
    def measured(self, heldout: Texts, states: States) -> tuple[Tensor, Tensor]:
        """See `Learner`: a round whose last token is t drafts tokens t + 1, t + 2, …"""
        depths, where = acceptance.DEPTH, self.model.where
        right: list[list[Tensor]] = [[] for _ in range(depths)]
        T = heldout.tokens.shape[1] - 1
        for numbers in torch.arange(len(heldout.tokens)).split(max(1, rows_at_once(where) // 4)):
            rows, known = moved(heldout.tokens[numbers], where), states[numbers]
            chosen = []
            with autocast(where):
                for anchors in torch.arange(T, device=where).expand(len(rows), T).split(_TOGETHER, 1):
                    found = self.predicted(rows, known, anchors, max(self.settings.k, depths))
                    at = anchors.unsqueeze(-1) + torch.arange(depths, device=where)
                    before = rows.gather(1, at.flatten(1).clamp(max=T)).view_as(at)
                    chosen.append(self.logits(found[:, :, :depths], before).argmax(-1))
            drafted = torch.cat(chosen, 1)  # [N, T, K]
            if self.vocabulary is not None:
                drafted = self.vocabulary.to(where)[drafted]
            for depth in range(depths):
                good = drafted[:, : T - depth, depth] == rows[:, 1 + depth :]
                right[depth].append(F.pad(good, (0, depth)).cpu())
        return torch.stack([torch.cat(parts) for parts in right]), rounds(heldout.written, depths)

    def tensors(self) -> dict[str, Tensor]:
        """See `Learner`."""
        module = self.module
        found = {"fc.weight": module.fc.weight, "hidden_norm.weight": module.feature_norm, "norm.weight": module.norm}
        for index, layer in enumerate(module.layers):
            found |= layer_tensors(layer, f"layers.{index}")
        return found

    def reading(self, config: Any) -> dict[str, tuple[Any, Any]]:
        """See `Learner`."""
        theirs, own = dflash_config(config), dflash_config(self.config)
        return {key: (theirs.get(key), own[key]) for key in ("target_layer_ids", "mask_token_id")}

    def save(self, folder: Path) -> None:
        """See `Learner`."""
        checkpoint.save(folder, self.config, self.tensors())
