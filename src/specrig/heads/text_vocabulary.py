"""The further tokens of texts that a head learns from (`heads.context_vocabulary`)."""

from __future__ import annotations

import torch
from torch import Tensor

from specrig.heads.context_vocabulary import NEVER
from specrig.heads.learner import draft_ids
from specrig.heads.teacher import LMHead


class TextVocabulary:
    """B texts of T + 1 tokens, each with m further tokens at most. N predictions, Vd the head's vocabulary."""

    def __init__(self, tokens: Tensor, vocabulary: Tensor, output: LMHead) -> None:
        """tokens: `[B, T + 1]`; vocabulary: `[Vd]`, the head's rising ids; output: the model's LM head."""
        self.output, self.own = output, len(vocabulary)
        lacking = draft_ids(tokens, vocabulary) < 0
        found = [dict[int, int]() for _ in tokens]
        for (row, position), token in zip(lacking.nonzero().tolist(), tokens[lacking].tolist(), strict=True):
            found[row].setdefault(token, position)
        m = max(1, *map(len, found))
        never = tokens.shape[1]
        self.ids = torch.tensor([[*row, *[0] * (m - len(row))] for row in found], device=tokens.device)
        """`[B, m]`."""
        self.since = torch.tensor([[*row.values(), *[never] * (m - len(row))] for row in found], device=tokens.device)
        """`[B, m]`, the position at which each occurs first."""

    def logits(self, read: Tensor, row: Tensor, known: Tensor) -> Tensor:
        """Of what an LM head reads, `[N, D]`, in texts `row` `[N]`, whose tokens up to position `known` `[N]` are the
        context: `[N, m]`.
        """
        parts = [
            LMHead(self.output.weight[ids], None if self.output.bias is None else self.output.bias[ids])(
                read[row == number]
            )
            for number, ids in enumerate(self.ids)
        ]
        back = row.argsort(stable=True).argsort()  # from the order of texts to that of `read`
        return torch.cat(parts)[back].masked_fill(self.since[row] > known.unsqueeze(1), NEVER)

    def places(self, tokens: Tensor, row: Tensor, known: Tensor, own: Tensor) -> Tensor:
        """Where the logits `[N, Vd + m]` have these tokens `[N]`; -1 for those that are not there. own: `[N]`, their
        places among the first Vd, -1 likewise.
        """
        same = (self.ids[row] == tokens.unsqueeze(1)) & (self.since[row] <= known.unsqueeze(1))  # [N, m]
        further = torch.where(same.any(1), self.own + same.long().argmax(1), -1)
        return torch.where(own < 0, further, own)

    def chosen(self, own: Tensor, further: Tensor, row: Tensor, named: Tensor) -> Tensor:
        """The most likely token of logits `[N, Vd]` and `[N, m]`: `[N]`. named: `[N]`, of the first the most likely."""
        best, place = further.max(-1)
        return torch.where(best > own.amax(-1), self.ids[row].gather(1, place.unsqueeze(1)).squeeze(1), named)
