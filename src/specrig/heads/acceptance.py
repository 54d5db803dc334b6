"""The acceptance to expect of a draft or a head, measured on held-out text that the target wrote greedily.

The draft of depth i counts only where those above it were right, as when it drafts. With acc_i the share that is right
among these, a round of K drafted tokens emits tau_sim = 1 + Σ_i Π_{j<=i} acc_j tokens on average: each product is the
share of rounds that get so far.
Shapes: N texts, T positions, K depths.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

DEPTH = 5
"""Depths that are measured."""


def accuracies(right: Tensor, evaluated: Tensor) -> list[float]:
    """acc_1 … acc_K of rounds at every position.

    right: `[K, N, T]` bool, whether the token that the round at position t drafts at depth i is the target's;
    evaluated: whether the target chose a token there at all. A round counts at depth i where it was evaluated and right
    at all depths above.
    """
    alive = torch.ones_like(right[0])
    found = []
    for good, there in zip(right, evaluated, strict=True):
        alive = alive & there
        reached = int(alive.sum())
        alive = alive & good
        found.append(int(alive.sum()) / max(1, reached))
    return found


def expected(found: list[float]) -> float:
    """tau_sim of these accuracies."""
    product, total = 1.0, 1.0
    for share in found:
        product *= share
        total += product
    return total


def report(right: Tensor, evaluated: Tensor) -> dict[str, Any]:
    """What a training's curve gets at each evaluation: `acceptance` by depth, and `tau_sim`."""
    found = accuracies(right, evaluated)
    return {"acceptance": [round(share, 4) for share in found], "tau_sim": round(expected(found), 3)}


def summary(found: dict[str, Any]) -> str:
    """A report in one line, for a person."""
    shares = ", ".join(f"{share:.3f}" for share in found["acceptance"])
    return (
        f"held-out prompts: drafts at depth 1 to {len(found['acceptance'])} are right in {shares} of cases; tau_sim "
        f"{found['tau_sim']:.2f}"
    )


def rounds(written: Tensor, depths: int) -> Tensor:
    """Which rounds are evaluated at each depth, of `written` `[N, T + 1]` bool: those at a token that the target wrote,
    where it wrote the drafted one too. `[K, N, T]` bool.
    """
    return torch.stack([ahead(written[:, 1:], depth) & written[:, :-1] for depth in range(depths)])


def ahead(values: Tensor, depth: int) -> Tensor:
    """`values` `[N, T]` seen from `depth` positions before: entry t is that of t + depth, False where there is none."""
    shifted = torch.zeros_like(values)
    shifted[:, : values.shape[1] - depth] = values[:, depth:]
    return shifted
