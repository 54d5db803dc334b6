"""How many drafted tokens are worth verifying, by what a pass costs here and what was accepted so far.

A pass of 1 + n tokens costs v(n) plain passes. Decoding yields `rate` tokens in the time of a plain pass whatever this
round drafts, so one more drafted token pays where its chance of being accepted is above rate · (v(n + 1) - v(n)). On a
GPU at batch 1 v hardly rises and large drafts pay; on a processor or in a large batch few tokens do.

Example: v = 1, 1.04, 1.3 for no, one and two drafted tokens, a rate of 1.5. The first token pays from a chance of .06
on, the second from .39 on.

v is measured once, in passes that follow one another. In a round a token costs more: its pass follows other code and a
longer text, and drafting has its share (`DEARER`). Rounds themselves are not timed: a round's draft depends on the text
alone, so that repeats do the same work.

The output stays the target's. At temperature 0 any size is exact. Above it a token's slot must be kept or dropped
before the token is drawn: the chances given to `fit` must not depend on the token drawn in that slot or behind it.

v depends on times, so two processes may draft different numbers of tokens. Above temperature 0 their samples then
differ, though they follow the same distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import exp
from operator import mul
from typing import TYPE_CHECKING

from specrig.decoding.types import Draft, Verdict

if TYPE_CHECKING:
    from torch import Tensor

DEARER = 2.5
"""A wider pass makes a round longer by so many times what passes alone say; measured on two kinds of processor."""
DRAWN = 0.5
"""The chance of a token drawn from q, estimated from q alone. At this share of positions the target is taken to have
the distribution q itself, so that the first draw is accepted. At the others the target is taken to be certain of its
next token, and the j-th draw to be that one as often as q says of its j-th most likely token. A wrong share costs
speed, not exactness."""
MEMORY = 0.95
"""What a round's evidence is worth a round later."""
PRIOR = 2.0
"""Tokens that count as expected and accepted before the first round."""
LEAST = 1e-30
"""What a further token costs at least, so that one without any chance is not verified."""


def slopes(costs: Sequence[float]) -> list[float]:
    """What each further token costs, rising: the slopes of the largest convex function below `costs`.

    Kernels work in tiles, so measured costs are stairs: a tile's first token is expensive, the next ones are free.
    The slopes spread a tile's cost over its tokens. Example: 1, 1.2, 1.2, 1.6 -> .1, .1, .4.
    """
    hull: list[int] = []
    for n, cost in enumerate(costs):
        while len(hull) > 1:
            last, before = hull[-1], hull[-2]
            if (costs[last] - costs[before]) * (n - last) < (cost - costs[last]) * (last - before):
                break
            hull.pop()
        hull.append(n)
    return [(costs[end] - costs[start]) / (end - start) for start, end in pairwise(hull) for _ in range(end - start)]


class DraftSize:
    """Chooses the size of each round's draft for a batch, and learns from what was accepted. Its rows share one."""

    def __init__(self, costs: Sequence[float], dearer: float = 1.0) -> None:
        """costs: of passes of 1, 2, ... tokens a row, in plain passes (`Resources.pass_costs`). dearer: what a further
        token costs in a round, as a multiple of what the passes say.
        """
        self.costs = costs
        self.slopes = [max(dearer * slope, LEAST) for slope in slopes(costs)]
        self.rate = 1.0
        self._expected = self._accepted = PRIOR
        self._shares: list[Sequence[float]] = []
        self.lengths: list[int] = []
        """How many tokens of each row's chain this round verifies, by `fit_chains`."""

    @property
    def trust(self) -> float:
        """Accepted tokens / the sum of the chances of all judged tokens, by the drafter's own estimate."""
        return self._accepted / self._expected

    def fit(self, chances: Sequence[float]) -> int:
        """How many of a draft's tokens to verify, from the first.

        chances: falling, each token's chance that it and all tokens before it on its path are accepted.
        """
        for size, (chance, least) in enumerate(zip(chances, self.least(len(chances)), strict=False)):
            if chance < least:
                return size
        return min(len(chances), len(self.slopes))

    def least(self, most: int) -> list[float]:
        """The chance that each of a draft's first `most` tokens must have; fewer where no more can be verified."""
        return [self.rate * slope for slope in self.slopes[:most]]

    def fit_chains(self, shares: Sequence[Sequence[float]], depths: Sequence[int]) -> list[int]:
        """How many tokens of each row's chain to verify, at most `depths[b]`.

        shares: by the drafter's own account the chance of each token of each row, given those before it.
        """
        trust = self.trust
        chances = [list(accumulate((min(1.0, trust * share) for share in row), mul)) for row in shares]
        self._shares = list(shares)
        self.lengths = [min(self.fit(row), depth) for row, depth in zip(chances, depths, strict=True)]
        return self.lengths

    def learn(self, expected: float, accepted: int, verdict: Verdict) -> None:
        """Learn from a round that is over, of this drafter or another.

        expected: the chances of all tokens of this drafter that were judged, summed over them and over the rows;
        accepted: how many of them were accepted.
        """
        self._expected = MEMORY * self._expected + (1 - MEMORY) * PRIOR + expected
        self._accepted = MEMORY * self._accepted + (1 - MEMORY) * PRIOR + accepted
        emitted = [len(tokens) for tokens in verdict.tokens if tokens]
        mean, cost = sum(emitted) / len(emitted), self.costs[min(max(map(len, verdict.drafted)), len(self.costs) - 1)]
        self.rate = MEMORY * self.rate + (1 - MEMORY) * mean / cost

    def learn_chains(self, verdict: Verdict) -> None:
        """Learn from chains of `lengths` tokens each; nothing is expected until `fit_chains` is called again."""
        accepted = [min(n, len(path)) for n, path in zip(self.lengths, verdict.paths, strict=False)]
        # The first token that is rejected was judged too; those behind it were not.
        judged = [min(n, count + 1) for n, count in zip(self.lengths, accepted, strict=True)]
        expected = sum(sum(row[:n]) for row, n in zip(self._shares, judged, strict=True))
        self._shares, self.lengths = [], []
        self.learn(expected, sum(accepted), verdict)

    def learn_trees(self, values: Sequence[Sequence[float]], verdict: Verdict) -> None:
        """Learn from trees. values: of each row the logarithm of each node's chance, `trust` in it; none: it had no
        tree.
        """
        expected, accepted = 0.0, 0
        for row, (own, path, tokens) in enumerate(zip(values, verdict.paths, verdict.tokens, strict=True)):
            parents = verdict.parents[row] if verdict.parents is not None else range(-1, len(own) - 1)
            if tokens and own:  # the children of the root and of each accepted node were judged
                judged = {-1: 0.0} | {node: own[node] for node in path}
                shares = (
                    exp(value - judged[above]) for value, above in zip(own, parents, strict=False) if above in judged
                )
                expected += sum(shares) / self.trust
                accepted += len(path)
        self.learn(expected, accepted, verdict)

    def shorten(self, draft: Draft, logits: Tensor, depths: Sequence[int]) -> Draft:
        """The chains of a drafter that gives the logits `[B, k, Vd]` of all their tokens at once, cut where they fit."""
        # A slot's chance is known before its token is drawn: a slot reads at most the tokens before its own.
        best = (logits.float().softmax(-1) if draft.probs is None else draft.probs).amax(-1)
        shares = best if draft.probs is None else DRAWN + (1 - DRAWN) * best
        return cut(draft, self.fit_chains(shares.tolist(), depths))


def cut(draft: Draft, lengths: list[int]) -> Draft:
    """The first `lengths[b]` tokens of each row's chain."""
    width = max(lengths)
    probs = None if draft.probs is None or not width else draft.probs[:, :width]
    return replace(draft, tokens=draft.tokens[:, :width], rows=None, probs=probs, lengths=lengths)
