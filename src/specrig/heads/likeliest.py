"""The most probable continuations as a tree, best first: of a suffix tree's nodes, or of a datastore's."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

N = TypeVar("N")
Child = tuple[float, int, int, N]
"""A child of a node of any kind: its share among its siblings, its rank among equals (the lowest first), its token,
and the node.
"""


def likeliest(
    start: N, children: Callable[[N], Iterable[Child[N]]], nodes: int, depth: int, least: float | Sequence[float] = 0.0
) -> tuple[list[float], list[int], list[int]]:
    """The most probable continuations of `start` as a tree: (their probabilities, tokens, parents; -1 is `start`
    itself), best first.

    A node's probability is the product of the shares along its path. nodes: at most so many; depth: at most so many
    levels; least: the lowest probability of all nodes, or rising ones of the first node, the second, …. A child is never
    more probable than its parent, so the best of what is known is always the best of all.
    """
    if not nodes:
        return [], [], []
    bars = least if isinstance(least, Sequence) else [least] * nodes
    probabilities, tokens, parents = list[float](), list[int](), list[int]()
    # Probability (negative), rank among equals, parent, level, token, node; the first three distinguish all nodes.
    heap: list[tuple[float, int, int, int, int, N]] = []

    def offer(node: N, parent: int, level: int, probability: float) -> None:
        for share, rank, token, child in children(node):
            if probability * share >= bars[len(tokens)]:
                heapq.heappush(heap, (-probability * share, rank, parent, level, token, child))

    offer(start, -1, 1, 1.0)
    while heap and len(tokens) < nodes:
        negative, _, parent, level, token, node = heapq.heappop(heap)
        if -negative < bars[len(tokens)]:  # and so are all that are left
            break
        probabilities.append(-negative)
        tokens.append(token)
        parents.append(parent)
        if level < depth and len(tokens) < nodes and -negative >= bars[len(tokens)]:
            offer(node, len(tokens) - 1, level + 1, -negative)
    return probabilities, tokens, parents
