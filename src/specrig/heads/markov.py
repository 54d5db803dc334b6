"""A bias of the token before, for heads that draft all depths at once: logits += W2 W1[x], of rank r.

Such heads do not know what was drafted before them. The bias tells them the last token of it, level by level, without a
pass through a layer (DSpark, 2607.05147, has it on a block of DFlash). Tensors of a head's checkpoint, where its
config.json has a `markov_rank` r above 0: `markov.embedding.weight` `[V, r]` and `markov.lm_head.weight` `[Vd, r]`. V
vocabulary, Vd the heads'.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)

from specrig.heads.base import BIAS
from specrig.heads.shapes import markov
from specrig.runtime import compiled
from specrig.runtime.linear import Linear

RANK, _EMBEDDING, _LM_HEAD = BIAS
shapes = markov
"""Its tensors in the checkpoint of heads with a configuration; none without `markov_rank`."""


def noted(rank: int) -> dict[str, int]:
    """What config.json says of it."""
    return {RANK: rank} if rank else {}


class MarkovBias(nn.Module):
    """W1 as `embedding` `[V, r]`, W2 as `lm_head` `[Vd, r]`: the optimiser knows them by these names."""

    blocks: Tensor | None = None
    """W2 as compiled code reads it, see `compiled.greedy_chain`; None: none does."""
    product: Linear | None = None
    """W2 as decoding multiplies with it; None: as training does."""

    def __init__(self, embedding: Tensor, lm_head: Tensor) -> None:
        super().__init__()
        self.embedding, self.lm_head = nn.Parameter(embedding), nn.Parameter(lm_head)

    @classmethod
    def untrained(cls, vocabulary: int, drafted: int, rank: int, seed: int) -> MarkovBias | None:
        """One that adds nothing yet; None for rank 0."""
        if not rank:
            return None
        # Entries of size 1: each step of an optimiser moves W2 by about its rate, and so the logits by `rank` times that.
        embedding = torch.randn(vocabulary, rank, generator=torch.Generator().manual_seed(seed))
        return cls(embedding, torch.zeros(drafted, rank))

    @classmethod
    def of(cls, weights: dict[str, Tensor], rows: slice | Tensor) -> MarkovBias | None:
        """The bias of a checkpoint, with these rows of its `lm_head`; None without a bias."""
        if _EMBEDDING not in weights:
            return None
        found = cls(weights[_EMBEDDING], weights[_LM_HEAD][rows]).requires_grad_(False)
        found.blocks = compiled.bias_blocks(found.lm_head.detach())
        found.product = Linear(found.lm_head.detach())
        return found

    def round_weights(self) -> None:
        """Let compiled code multiply W2 with weights of 8 bits from now on."""
        if self.blocks is not None:
            self.blocks = compiled.to_eight_bits(self.lm_head)

    def tensors(self) -> dict[str, Tensor]:
        """Under the checkpoint's names."""
        return {_EMBEDDING: self.embedding, _LM_HEAD: self.lm_head}

    def forward(self, tokens: Tensor) -> Tensor:
        """The bias `[..., Vd]` after `tokens` `[...]`."""
        embedded = F.embedding(tokens, self.embedding)
        return F.linear(embedded, self.lm_head) if self.product is None else self.product(embedded)

    def greedy(self, logits: Tensor, ids: Tensor | None) -> Tensor | None:
        """Of logits `[B, k, Vd]`, whose first have no bias, the indices `[B, k]` of the highest, one after the other, as
        one call; None where compiled code cannot. ids: `[Vd]`, the target's tokens; None: all.
        """
        weights = self.compiled_for(logits)
        return None if weights is None else compiled.greedy_chain(logits, weights, ids)

    def compiled_for(self, logits: Tensor) -> tuple[Tensor, Tensor] | None:
        """W1 and W2 as compiled code adds them to logits `[..., Vd]`; None where it cannot."""
        if self.blocks is None or logits.shape[-1] != len(self.lm_head) or logits.dtype != self.lm_head.dtype:
            return None
        return self.embedding, self.blocks


def biased(logits: Tensor, bias: MarkovBias | None, tokens: Tensor) -> Tensor:
    """Logits `[..., Vd]` of what follows `tokens` `[...]`; they may leave out the last of the vocabulary."""
    return logits if bias is None else logits + bias(tokens)[..., : logits.shape[-1]]
