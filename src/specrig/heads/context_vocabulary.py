"""Tokens of the context that a head's reduced vocabulary lacks: the head drafts them too, by the target's own rows.

Names and words of another language are rare, so a reduced vocabulary lacks them, and a head cannot copy them from the
prompt. With `context_vocabulary` in its config.json a head's logits are of its Vd tokens and, behind them, of m other
tokens: those that occur in the context so far. Their rows are those of the target's LM head, behind the head's own
norm. The head learns with them (`heads.text_vocabulary`). A row of a batch drafts only what its own context holds. vLLM
knows no such key and drafts among the Vd tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specrig.runtime.device import on_device
from specrig.runtime.linear import Linear

KEY = "context_vocabulary"
BLOCK = 64
"""m is a multiple of it where the vocabulary has enough tokens, so that compiled code can read the logits. The tokens
that fill it up are never drafted.
"""
NEVER = -1e4
"""The logit of a token that is not there: its probability is 0, and it is finite in each precision."""


def config_keys(extended: bool) -> dict[str, bool]:
    """What config.json says of it."""
    return {KEY: True} if extended else {}


def is_extended(config: Any) -> bool:
    """Whether heads with this configuration draft such tokens."""
    return bool(getattr(config, KEY, False))


class ContextVocabulary:
    """The further tokens of a batch while it decodes. B contexts, D hidden width, V the target's vocabulary."""

    ids: Tensor
    """`[m]`, the tokens behind the head's own; the lists of a batch are joined."""
    rows: Linear
    """Their part of the target's LM head, `[m, D]`."""
    mask: Tensor
    """`[B, 1, m]`, added to the logits: 0 where a context has the token, else `NEVER`."""

    def __init__(self, weight: Tensor, bias: Tensor | None, own: Tensor, dtype: torch.dtype) -> None:
        """weight: `[V, D]` and bias: `[V]`, the target's LM head; own: `[Vd]`, the tokens that the head drafts in any
        case; dtype: the head's.
        """
        self.weight, self.bias, self.dtype = weight, bias, dtype
        self.own = set(own.tolist())
        self.others = [token for token in range(len(weight)) if token not in self.own]
        self.begin(len(weight))

    def begin(self, V: int) -> None:
        """Forget the contexts. V: only tokens below it are drafted; what follows is padding of the vocabulary."""
        self.V = V
        self.seen: list[set[int]] = []
        self.lengths: list[int] = []
        self.ids = torch.empty(0, dtype=torch.int64, device=self.weight.device)

    def extend(self, contexts: Sequence[Sequence[int]]) -> bool:
        """Take in what the contexts have gained; returns whether there were new tokens among it."""
        if not self.lengths:
            self.seen, self.lengths = [set() for _ in contexts], [0] * len(contexts)
        before = sum(map(len, self.seen))
        for row, context in enumerate(contexts):
            gained = context[self.lengths[row] :]
            self.seen[row].update(token for token in gained if token not in self.own and token < self.V)
            self.lengths[row] = len(context)
        if sum(map(len, self.seen)) == before:
            return False
        lacking = set().union(*self.seen)
        unused = (token for token in self.others if token not in lacking and token < self.V)
        ids = sorted(lacking) + [token for token, _ in zip(unused, range(-len(lacking) % BLOCK), strict=False)]
        device = self.weight.device
        self.ids = on_device(ids, device)
        bias = None if self.bias is None else self.bias[self.ids].to(self.dtype)
        self.rows = Linear(self.weight[self.ids].to(self.dtype), bias, kernel="plain")
        masks = [[0.0 if token in seen else NEVER for token in ids] for seen in self.seen]
        self.mask = on_device(masks, device, self.dtype).unsqueeze(1)
        return True

    def logits(self, normed: Tensor) -> Tensor:
        """Of what an LM head reads, `[B, n, D]`: `[B, n, m]`."""
        return self.rows(normed) + self.mask
