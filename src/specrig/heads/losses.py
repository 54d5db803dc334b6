"""Losses over a vocabulary that compute their gradient in the forward pass, a few rows at a time.

The usual way makes several `[N, V]` float32 arrays, which do not fit a CPU's cache; on two cores that takes longer than
the layers of a small model. Values and gradients are the same (a test compares). Shapes: N tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ROWS = 256
_ENTRIES = 2**27
"""Logits at a time on a GPU: half a gigabyte in float32."""


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        gradient = torch.empty_like(logits)
        total = torch.zeros((), device=logits.device)
        rows = _rows(logits)
        for start in range(0, len(logits), rows):
            own = labels[start : start + rows, None]
            given = logits[start : start + rows].softmax(-1, dtype=torch.float32)
            # Loss: -log p(label). Its gradient by the logits: p - onehot(label).
            total -= given.gather(1, own).clamp_min(1e-30).log().sum()
            given.scatter_add_(1, own, given.new_full(own.shape, -1.0))
            gradient[start : start + rows] = given.div_(len(logits))
        ctx.save_for_backward(gradient)
        return total / len(logits)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(outer[0]), None  # its only use: in place


class _Distillation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, goal: Tensor, labels: Tensor, kl_weight: float) -> Tensor:
        gradient = torch.empty_like(logits)
        total = torch.zeros((), device=logits.device)
        rows = _rows(logits)
        for start in range(0, len(logits), rows):
            own = labels[start : start + rows, None]
            given = logits[start : start + rows].log_softmax(-1, dtype=torch.float32)
            taught = goal[start : start + rows].log_softmax(-1, dtype=torch.float32)
            share = taught.exp()
            # c = 1 - w, the weight of the label; 0 where there is none.
            labelled = (1 - kl_weight) * (own >= 0)
            own = own.clamp_min(0)
            # With t the teacher's distribution (`share`), p the model's: w KL(t || p) = w Σ t (log t - log p), and
            # c times -log p(label). `taught` is used up.
            total += kl_weight * taught.sub_(given).mul_(share).sum() - (labelled * given.gather(1, own)).sum()
            # The gradient by the logits: w (p - t) + c (p - onehot(label)) = (w + c) p - w t - c onehot(label).
            slope = given.exp_().mul_(kl_weight + labelled).sub_(share.mul_(kl_weight))
            slope.scatter_add_(1, own, -labelled)
            gradient[start : start + rows] = slope.div_(len(logits))
        ctx.save_for_backward(gradient)
        return total / len(logits)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(outer[0]), None, None, None


class _Acceptance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, goal: Tensor, eta: float) -> Tensor:
        gradient = torch.empty_like(logits)
        total = torch.zeros((), device=logits.device)
        rows = _rows(logits)
        for start in range(0, len(logits), rows):
            given = logits[start : start + rows].log_softmax(-1, dtype=torch.float32)
            taught = goal[start : start + rows].log_softmax(-1, dtype=torch.float32)
            # With t the teacher's distribution and p the model's: KL(t || p), and the acceptance rate a = Σ min(t, p).
            share = taught.exp()
            divergence = (taught - given).mul_(share).sum(-1, keepdim=True)
            p = given.exp_()
            rate = torch.minimum(share, p).sum(-1, keepdim=True)
            weight = (-eta * rate).exp()
            total += (weight * divergence + (1 - weight) * (1 - rate)).sum()
            # By the logits: KL has p - t; 1 - a has p (s - below), where `below` marks p < t and s is p's mass there.
            below = p * (p < share)
            slope = p * below.sum(-1, keepdim=True) - below
            gradient[start : start + rows] = slope.mul_(1 - weight).add_(p.sub_(share).mul_(weight)).div_(len(logits))
        ctx.save_for_backward(gradient)
        return total / len(logits)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(outer[0]), None, None


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of logits `[N, V]` (any precision) against labels `[N]`, nats a token. One backward only."""
    loss: Tensor = _CrossEntropy.apply(logits, labels)
    return loss


def distillation(logits: Tensor, goal: Tensor, labels: Tensor, kl_weight: float) -> Tensor:
    """Mean of kl_weight x KL(goal || given) + (1 - kl_weight) x cross-entropy, nats a token. One backward only.

    `logits` and `goal`, the teacher's logits, are `[N, V]`; the goal gets no gradient. A label below 0 is none: that
    token's cross-entropy is left out.
    """
    loss: Tensor = _Distillation.apply(logits, goal, labels, kl_weight)
    return loss


def likeness(logits: Tensor, goal: Tensor, kind: str) -> Tensor:
    """How far the model's distributions are from the teacher's: the mean over N tokens. One backward only.

    `logits` and `goal`, the teacher's, are `[N, V]`. kind: `kl`, the KL divergence, nats a token; or `lk`, w KL + (1 -
    w) (1 - a), where a is the acceptance rate and w = exp(-3 a), taken as a constant, leans on KL while a is low (LK
    losses, arXiv:2602.23881).
    """
    if kind == "lk":
        loss: Tensor = _Acceptance.apply(logits, goal, 3.0)
        return loss
    return distillation(logits, goal, torch.full((len(logits),), -1, device=logits.device), 1.0)


def _rows(logits: Tensor) -> int:
    """Rows at a time: few on a CPU, for its cache; many on a GPU, for its launches."""
    return _ROWS if logits.device.type == "cpu" else max(1, _ENTRIES // logits.shape[1])
