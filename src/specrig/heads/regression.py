"""Ridge regression on a model's states: where a head begins, before gradients take over.

A linear map of a state, and of the embeddings of the tokens behind it, already says much of the states that come next.
It costs a pass over some thousand positions. Shapes: R inputs, D outputs, n entries.
"""

from __future__ import annotations

import torch
from torch import Tensor

ENTRIES = 8
"""Entries that are enough, for each input."""
RIDGE = 0.02
"""The penalty, in mean squares of an input."""


class Regression:
    """Sums over entries; the entries themselves are not kept."""

    def __init__(self, inputs: int, outputs: int, device: torch.device) -> None:
        self.products = torch.zeros(inputs, inputs, dtype=torch.float64, device=device)
        self.crossed = torch.zeros(inputs, outputs, dtype=torch.float64, device=device)
        self.entries = 0

    @property
    def enough(self) -> bool:
        """Whether further entries would add little."""
        return self.entries >= ENTRIES * len(self.products)

    def add(self, x: Tensor, y: Tensor) -> None:
        """Entries with inputs `[n, R]` and outputs `[n, D]`."""
        x, y = x.float(), y.float()
        self.products += x.T @ x
        self.crossed += x.T @ y
        self.entries += len(x)

    def solution(self) -> tuple[Tensor, Tensor] | None:
        """The root mean square of each input, `[R]`, and the map from the inputs divided by it, `[D, R]`; None for
        fewer entries than inputs.
        """
        if self.entries < len(self.products):
            return None
        scale = (self.products.diagonal() / self.entries).sqrt().clamp(min=1e-6)
        products = self.products / (scale * scale.unsqueeze(1))
        products.diagonal().add_(RIDGE * self.entries)
        found = torch.linalg.solve(products, self.crossed / scale.unsqueeze(1))
        return scale.float(), found.T.float().contiguous()
