"""Losses over a vocabulary that compute their gradient in the forward pass, a few rows at a time.

The usual way makes several `[N, V]` float32 arrays, which do not fit a CPU's cache; on two cores that takes longer than the layers of a
small model. Values and gradients are the same (a test compares). Shapes: N tokens, V vocabulary.
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
            # With t the teacher's distribution (`share`), p the model's: w KL(t || p) = w Σ t (log t - log p), and
            # (1 - w) times -log p(label). `taught` is used up.
            total += kl_weight * taught.sub_(given).mul_(share).sum() - (1 - kl_weight) * given.gather(1, own).sum()
            # The gradient by the logits: w (p - t) + (1 - w) (p - onehot(label)) = p - w t - (1 - w) onehot(label).
            slope = given.exp_().sub_(share.mul_(kl_weight))
            slope.scatter_add_(1, own, slope.new_full(own.shape, kl_weight - 1.0))
            gradient[start : start + rows] = slope.div_(len(logits))
        ctx.save_for_backward(gradient)
        return total / len(logits)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(outer[0]), None, None, None


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of logits `[N, V]` (any precision) against labels `[N]`, nats a token. One backward only."""
    loss: Tensor = _CrossEntropy.apply(logits, labels)
    return loss


def distillation(logits: Tensor, goal: Tensor, labels: Tensor, kl_weight: float) -> Tensor:
    """Mean of kl_weight x KL(goal || given) + (1 - kl_weight) x cross-entropy, nats a token. One backward only.

    `logits` and `goal`, the teacher's logits, are `[N, V]`; the goal gets no gradient.
    """
    loss: Tensor = _Distillation.apply(logits, goal, labels, kl_weight)
    return loss


def _rows(logits: Tensor) -> int:
    """Rows at a time: few on a CPU, for its cache; many on a GPU, for its launches."""
    return _ROWS if logits.device.type == "cpu" else max(1, _ENTRIES // logits.shape[1])
