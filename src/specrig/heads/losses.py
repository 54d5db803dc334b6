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

_ENTRIES = {"cpu": 2**19, "cuda": 2**27}
"""Logits of a few rows: 2 MB in float32 for a CPU's cache, half a gigabyte on a GPU, which has few launches then."""
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
def overlaps(logits: Tensor, goal: Tensor) -> Tensor:
    """The share of tokens drawn from the distributions of `logits` `[N, V]` that rejection sampling accepts against those of
    `goal`, Σ min(p, q): `[N]` float32.
    """
    rows = max(1, _ENTRIES[logits.device.type] // logits.shape[1])
    parts = zip(logits.split(rows), goal.split(rows), strict=True)
    return torch.cat([torch.minimum(*(part.float().softmax(-1) for part in pair)).sum(-1) for pair in parts])


@torch.no_grad()
def probabilities(logits: Tensor, labels: Tensor) -> Tensor:
    """What the distributions of `logits` `[N, V]` give to `labels`: `[N]` float32; 0 to a label below 0."""
    rows = max(1, _ENTRIES[logits.device.type] // logits.shape[1])
    found = [
        some.float().softmax(-1).gather(-1, label.clamp(min=0).unsqueeze(-1)).squeeze(-1) * (label >= 0)
        for some, label in zip(logits.split(rows), labels.split(rows), strict=True)
    ]
    return torch.cat(found)
