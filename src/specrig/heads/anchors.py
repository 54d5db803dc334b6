"""What heads that draft in one pass learn from: anchors in a text, and masks that hang on them (PARD, P-EAGLE, DFlash).

An anchor is a position from which a draft begins. The mask of depth d stands for the d-th token behind it. Shapes: B texts,
T anchors each, K depths, L positions of a pass.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specrig.heads.acceptance import ahead
from specrig.heads.base import kept_share
from specrig.heads.losses import probabilities

ALPHA = 0.5
"""Of D-PACE: the least chance that a position is taken to be right."""


class Copies(NamedTuple):
    """The positions of a pass over texts and masks: anchors and depths, both `[B, L]`. The first T are the text itself, at
    depth 0.

    kept: which of them learn, `[B, L]` bool; the others are there because rows differ in number.
    """

    anchors: Tensor
    depths: Tensor
    kept: Tensor

    @classmethod
    def of(cls, kept: Tensor) -> Copies:
        """From which anchors are kept at each depth, `[K, B, T]` bool."""
        B, T = kept.shape[1:]
        text = torch.arange(T, device=kept.device).expand(B, T)
        anchors, depths, there = [text], [torch.zeros_like(text)], [kept[0]]
        for depth, here in enumerate(kept[1:], 1):
            entries, real = side_by_side(here)
            anchors.append(entries)
            depths.append(torch.full_like(entries, depth))
            there.append(real)
        return cls(torch.cat(anchors, 1), torch.cat(depths, 1), torch.cat(there, 1))

    @classmethod
    def every(cls, anchors: int, depths: int, where: torch.device) -> Copies:
        """Of any text of so many anchors all that have a token to draft at each depth: B is 1."""
        return cls.of(kept_anchors(torch.ones(1, anchors, dtype=torch.bool, device=where), depths))

    @property
    def positions(self) -> Tensor:
        """`[B, L]`."""
        return self.anchors + self.depths

    def at(self, depth: int) -> Tensor:
        """Where the anchors of a depth stand in a pass that is alike for all texts (`every`), `[n]`."""
        return (self.depths[0] == depth).nonzero().flatten()

    def seen(self) -> Tensor:
        """Which positions each one attends to, `[B, 1, L, L]` bool: the text up to its anchor, and the anchor's masks up to
        its own depth.
        """
        text = (self.depths == 0).unsqueeze(1)
        context = text & (self.anchors.unsqueeze(1) <= self.anchors.unsqueeze(2))
        masks = ~text & (self.anchors.unsqueeze(1) == self.anchors.unsqueeze(2))
        return (context | (masks & (self.depths.unsqueeze(1) <= self.depths.unsqueeze(2)))).unsqueeze(1)


def kept_anchors(written: Tensor, depths: int, generator: torch.Generator | None = None) -> Tensor:
    """Which anchors are learnt from at depth 0 … K - 1: `[K, B, T]` bool, each depth's among those of the depth before.

    written: `[B, T]`, whether the target wrote the token after each anchor. An anchor of depth d needs d + 1 such
    tokens behind it. generator: of conditional drop-out (PARD, 2504.18583, section 3.2), which keeps a random
    `kept_share` of each row's anchors; None: all are kept.
    """
    there = torch.stack([ahead(written, depth) for depth in range(depths)]).long().cumprod(0).bool()
    if generator is None:
        return there
    ranks = random_ranks(written, generator)
    shares = torch.tensor([kept_share(depth) for depth in range(depths)], device=written.device)
    return there & (ranks < (shares.unsqueeze(1) * written.sum(-1)).ceil().unsqueeze(-1))


def random_ranks(kept: Tensor, generator: torch.Generator) -> Tensor:
    """A random order of each row's entries of `[B, T]` bool, from 0; the others come behind: `[B, T]`."""
    order = torch.rand(kept.shape, generator=generator, device=kept.device)
    return order.masked_fill_(~kept, 2.0).argsort(-1).argsort(-1)


def side_by_side(kept: Tensor) -> tuple[Tensor, Tensor]:
    """The anchors of each row side by side: `[B, T]` bool -> their entries `[B, n]`, n the most of a row, and which of
    these are real.
    """
    counts = kept.sum(1)
    width = int(counts.max())
    # Stable, so that anchors keep their order.
    entries = (~kept).long().argsort(dim=1, stable=True)[:, :width]
    return entries, torch.arange(width, device=kept.device) < counts.unsqueeze(1)


def position_weights(
    drafted: tuple[Tensor, Tensor, Tensor],
    kept: Tensor,
    logits: Tensor,
    labels: Tensor,
    decay: Tensor | None,
    share: Tensor,
) -> Tensor:
    """How much each of N drafted tokens weighs in a loss: `[N]`.

    drafted: depth, text and anchor of each, `[N]`. kept: `[K, B, T]`, from which anchors each depth is learnt.
    logits: `[N, Vd]`, and labels: `[N]`, the right tokens. decay: `[K]`, a weight for each depth; None: `d_pace`.
    share: `[K]`, of the anchors that are kept at each depth: a depth weighs as if it were learnt from all.
    """
    depth = drafted[0]
    if decay is not None:
        return (decay / share)[depth]
    right = torch.zeros(kept.shape, device=logits.device)
    right[drafted] = probabilities(logits, labels)
    return d_pace(right, kept / share.view(-1, 1, 1))[drafted]


def d_pace(right: Tensor, counts: Tensor | None = None) -> Tensor:
    """What each position of a draft adds to the expected accepted length, as its weight `[K, ...]` in a loss (D-PACE,
    2605.18810): w_j = Σ_{m >= j} Π_{i <= m} ((1 - α) q_i + α).

    right: `[K, ...]`, q_i, the probability of the right token at depth i. counts: `[K, ...]`, how many drafts each term
    stands for where only some were drawn, 0 where it was not.
    """
    reached = ((1 - ALPHA) * right + ALPHA).cumprod(0)
    return (reached if counts is None else reached * counts).flip(0).cumsum(0).flip(0)
