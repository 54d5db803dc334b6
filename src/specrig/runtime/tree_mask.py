"""Attention masks of a pass whose tokens form a tree: each token sees itself and its ancestors.

Shapes: B rows, n tokens of the pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)


def pad_mask(own: Tensor, extra: int) -> Tensor:
    """Append `extra` tokens, which see only the context and themselves, to a mask `[B, n, m]` (`CachedModel._own`)."""
    if not extra:
        return own
    n = own.shape[1]
    wide = F.pad(own, (0, extra, 0, extra))
    wide[:, n:, -extra:] = torch.eye(extra, dtype=torch.bool, device=own.device)
    return wide


def ancestors(parents: Sequence[Sequence[int]]) -> Tensor:
    """`[B, n, n]` bool of trees whose parents `[B, n]` the host knows: True where j is i itself or an ancestor of it.

    Nodes are in topological order, -1 is the context.
    """
    rows = np.array(parents).reshape(len(parents), -1)
    B, n = rows.shape
    # Row n stands for the context, which has no ancestors. Topological order makes one sweep enough.
    ancestors, batch = np.zeros((B, n + 1, n), bool), np.arange(B)
    for node in range(n):
        ancestors[:, node] = ancestors[batch, rows[:, node]]
        ancestors[:, node, node] = True
    return torch.from_numpy(ancestors[:, :n])


def ancestors_on_device(parents: Tensor) -> Tensor:
    """`ancestors` of trees whose parents `[B, n]` are on the device: `[B, n, n]` bool, without a loop over nodes."""
    n = parents.shape[1]
    nodes = torch.arange(n, device=parents.device)
    # links[b, i, j]: j is i or its parent, one generation at most.
    links = ((parents.unsqueeze(-1) == nodes) | (nodes.unsqueeze(-1) == nodes)).float()
    # The product links i to j where some node lies between them, so each squaring doubles the generations. A tree of n
    # nodes has at most n - 1 of them, hence ceil(log2 n) squarings. Sums of ones are clamped back to 1.
    for _ in range((n - 1).bit_length()):
        links = (links @ links).clamp_(max=1.0)
    return links > 0
