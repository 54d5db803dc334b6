"""Tokens of the context that a head's reduced vocabulary lacks: the head drafts them too, by the target's own rows.

Names and words of another language are rare, so a reduced vocabulary lacks them, and a head cannot copy them from the
prompt. With `context_vocabulary` in its config.json a head's logits are of its Vd tokens and, behind them, of the m
other tokens that occur in the context so far. Their rows are those of the target's LM head, behind the head's own norm,
and the head learns with them. A row of a batch drafts only what its own context holds. vLLM knows no such key and
drafts among the Vd tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)

KEY = "context_vocabulary"
BLOCK = 64
"""m is a multiple of it, so that compiled code can read the logits. What fills it up is never drafted."""
NEVER = -1e4
"""The logit of a token that is not there: its probability is 0, and it is finite in each precision."""


def noted(extended: bool) -> dict[str, bool]:
    """What config.json says of it."""
    return {KEY: True} if extended else {}


def extends(config: Any) -> bool:
    """Whether heads with this configuration draft such tokens."""
    return bool(getattr(config, KEY, False))


class ContextVocabulary:
    """The further tokens of a batch while it decodes. B contexts, D hidden, V vocabulary, Vd the head's."""

    def __init__(self, rows: Tensor, own: Tensor) -> None:
        """rows: `[V, D]`, the target's LM head; own: `[Vd]`, the tokens that the head drafts in any case."""
        self.all_rows, self.device = rows, rows.device
        self.own = set(own.tolist())
        self.others = [token for token in range(len(rows)) if token not in self.own]
        self.begin()

    def begin(self) -> None:
        """Forget the contexts."""
        self.found: list[set[int]] = []
        self.counts: list[int] = []
        self.ids = torch.empty(0, dtype=torch.int64, device=self.device)
        """`[m]`, the tokens behind the head's own."""

    def read(self, contexts: Sequence[Sequence[int]]) -> bool:
        """Take in what the contexts have gained; returns whether `ids` changed."""
        if not self.counts:
            self.found, self.counts = [set() for _ in contexts], [0] * len(contexts)
        before = sum(map(len, self.found))
        for row, context in enumerate(contexts):
            self.found[row].update(token for token in context[self.counts[row] :] if token not in self.own)
            self.counts[row] = len(context)
        if sum(map(len, self.found)) == before:
            return False
        there = set().union(*self.found)
        wanted = -len(there) % BLOCK
        unused = (token for token in self.others if token not in there)
        ids = sorted(there) + [token for token, _ in zip(unused, range(wanted), strict=False)]
        self.ids = torch.tensor(ids, device=self.device)
        self.rows = self.all_rows[self.ids]
        # [B, 1, m], added to the logits
        masks = [[0.0 if token in found else NEVER for token in ids] for found in self.found]
        self.mask = torch.tensor(masks, dtype=self.rows.dtype, device=self.device).unsqueeze(1)
        return True

    def logits(self, normed: Tensor) -> Tensor:
        """Of what an LM head reads, `[B, n, D]`: `[B, n, m]`."""
        return F.linear(normed, self.rows) + self.mask
