"""Simulated acceptance: the passes are real, but how much is accepted is drawn at random.

This lets a study measure the cost of speculation on an architecture without its weights (random weights cost the same),
and what a pair would gain from another acceptance. Draft and target run, and verification does all its work. Then the
outcome of verification is replaced: each level of the draft is accepted with the declared
probability α, so a chain of k tokens emits (1 - α^(k+1)) / (1 - α) tokens a round on average (Leviathan et al.
2211.17192, eq. 1). The output is not text and cannot be judged lossless or not; records say "simulated acceptance".
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from specrig.decoding.types import Draft, Verdict


class SimulatedAcceptance:
    """Replaces verdicts by simulated ones. Each row has a random stream for this, apart from the sampler's and seeded,
    so runs repeat.
    """

    def __init__(self, alpha: float, seeds: Sequence[int]) -> None:
        """alpha: chance in [0, 1] that a drafted token is accepted, given that those before it were; seeds: one a row."""
        self.alpha = alpha
        self.streams = [random.Random(seed) for seed in seeds]

    def __call__(self, verdict: Verdict, draft: Draft, active: Sequence[bool]) -> Verdict:
        """A verdict with new paths: from the root along first children, as many levels as are accepted in turn with
        chance α.

        The token that the target adds stays the one of `verdict`.
        """
        tokens, paths, overlap, reached = [], [], [], []
        counts = draft.offered
        for row, drafted in enumerate(verdict.drafted):
            offered = _first_path(verdict, row, counts[row]) if active[row] else []
            accepted = 0
            while accepted < len(offered) and self.streams[row].random() < self.alpha:
                accepted += 1
            paths.append(offered[:accepted])
            tokens.append([*(drafted[node] for node in paths[-1]), verdict.tokens[row][-1]])
            reached.append(min(accepted + 1, len(offered)))
            overlap.append(self.alpha * reached[-1])
        return Verdict(tokens, paths, overlap, reached, verdict.drafted, verdict.parents)


def _first_path(verdict: Verdict, row: int, count: int) -> list[int]:
    """Of a row that offers its first `count` nodes: a chain's nodes; in a tree those from the root along each node's
    first child.
    """
    if verdict.parents is None:
        return list(range(count))
    first: dict[int, int] = {}
    for node, parent in enumerate(verdict.parents[row][:count]):
        first.setdefault(parent, node)
    path: list[int] = []
    node = -1
    while node in first:
        node = first[node]
        path.append(node)
    return path
