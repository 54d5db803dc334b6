"""Losses over a vocabulary. Shapes: N tokens, V vocabulary.

Whole `[N, V]` arrays in float32 do not fit a CPU's cache, and of a large vocabulary not a GPU's memory. So a loss is
computed a few rows at a time, once more in the backward pass: a few rows are held in float32, whatever N is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name
from torch.utils.checkpoint import checkpoint

from specrig.heads.acceptance import ahead
from specrig.heads.base import kept_share

_ENTRIES = {"cpu": 2**19, "cuda": 2**27}
"""Logits of a few rows: 2 MB in float32 for a CPU's cache, half a gigabyte on a GPU, which has few launches then."""
ALPHA = 0.5
"""Of D-PACE: the least chance that a position is taken to be right."""
ETA = 3.0
"""How fast an `lk` loss turns from the divergence to the acceptance rate."""


def by_rows(loss: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """The sum of a loss over tensors `[N, ...]`, a few rows at a time (see the module)."""
    rows = max(1, _ENTRIES[tensors[0].device.type] // tensors[0].shape[1])
    parts = zip(*(tensor.split(rows) for tensor in tensors), strict=True)
    return torch.stack([checkpoint(loss, *part, use_reentrant=False, preserve_rng_state=False) for part in parts]).sum()


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of logits `[N, V]` (any precision) against labels `[N]`, nats a token."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.float(), labels, reduction="sum")

    return by_rows(loss, logits, labels) / max(1, len(logits))


def distillation(logits: Tensor, goal: Tensor, labels: Tensor, kl_weight: float) -> Tensor:
    """Mean of kl_weight x KL(goal || given) + (1 - kl_weight) x cross-entropy, nats a token; 0 of no tokens.

    `logits` and `goal`, the teacher's logits, are `[N, V]`. A label below 0 is none: that token's cross-entropy is left
    out.
    """

    def loss(logits: Tensor, goal: Tensor, labels: Tensor) -> Tensor:
        own, taught = logits.float().log_softmax(-1), goal.float().log_softmax(-1)
        divergence = F.kl_div(own, taught, log_target=True, reduction="sum")
        return kl_weight * divergence + (1 - kl_weight) * F.nll_loss(own, labels, ignore_index=-1, reduction="sum")

    return by_rows(loss, logits, goal, labels) / max(1, len(logits))


def distribution_loss(logits: Tensor, goal: Tensor, kind: str, weights: Tensor | None = None) -> Tensor:
    """How far the model's distributions are from the teacher's: the mean over N tokens, by `weights` `[N]` where there
    are any; 0 of no tokens.

    `logits` and `goal`, the teacher's, are `[N, V]`. kind: `kl`, the KL divergence, nats a token; or `lk`, w KL + (1 -
    w) (1 - a), where a is the acceptance rate and w = exp(-3 a), taken as a constant, leans on KL while a is low (LK
    losses, arXiv:2602.23881).
    """

    def loss(logits: Tensor, goal: Tensor, weights: Tensor) -> Tensor:
        own, taught = logits.float().log_softmax(-1), goal.float().log_softmax(-1)
        divergence = F.kl_div(own, taught, log_target=True, reduction="none").sum(-1)
        if kind == "kl":
            return (weights * divergence).sum()
        rate = torch.minimum(own.exp(), taught.exp()).sum(-1)
        lean = (-ETA * rate.detach()).exp()
        return (weights * (lean * divergence + (1 - lean) * (1 - rate))).sum()

    if weights is None:
        weights = torch.ones(len(logits), device=logits.device)
    return by_rows(loss, logits, goal, weights) / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)


@torch.no_grad()
def probabilities(logits: Tensor, labels: Tensor) -> Tensor:
    """What the distributions of `logits` `[N, V]` give to `labels`: `[N]` float32; 0 to a label below 0."""
    rows = max(1, _ENTRIES[logits.device.type] // logits.shape[1])
    found = [
        some.float().softmax(-1).gather(-1, label.clamp(min=0).unsqueeze(-1)).squeeze(-1) * (label >= 0)
        for some, label in zip(logits.split(rows), labels.split(rows), strict=True)
    ]
    return torch.cat(found)


def d_pace(right: Tensor, counts: Tensor | None = None) -> Tensor:
    """What each position of a draft adds to the expected accepted length, as its weight `[K, ...]` in a loss (D-PACE,
    2605.18810): w_j = Σ_{m >= j} Π_{i <= m} ((1 - α) q_i + α).

    right: `[K, ...]`, q_i, the probability of the right token at depth i. counts: `[K, ...]`, how many drafts each term
    stands for where only some were drawn, 0 where it was not.
    """
    reached = ((1 - ALPHA) * right + ALPHA).cumprod(0)
    return (reached if counts is None else reached * counts).flip(0).cumsum(0).flip(0)


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
