"""Trees whose shape is fixed before anything is drafted, and how heads fill them.

A node is named by the path of ranks that leads to it: (0, 2) is the third choice below the first level's first one. A
`Layout` is filled at once, where all nodes of a level share their choices (Medusa); a `Plan` level by level, where each
node has children of its own (Hydra).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from specrig.decoding.draft_size import DraftSize
from specrig.decoding.types import Context, Draft, Verdict

if TYPE_CHECKING:
    from torch import Tensor

Ranks = tuple[int, ...]
FALLBACK = (4, 2, 1)
"""Branching of the tree for heads whose accuracies nobody has measured."""
MOST = 63
"""Nodes of the largest fitted tree."""


def assumed_accuracy(width: int, depth: int) -> list[list[float]]:
    """Where nothing was measured: the choice of rank r (from 0) is right with chance 1 / (2r + 2)."""
    return [[0.5 / (rank + 1) for rank in range(width)]] * depth


def regular_tree(branching: Sequence[int], depth: int) -> list[Ranks]:
    """The nodes of a tree in which every node of level l has `branching[l]` children, or one where `branching` is
    shorter.

    Example: branching 2-1, depth 2 -> (0,) (1,) (0, 0) (1, 0).
    """
    nodes: list[Ranks] = []
    above: list[Ranks] = [()]
    for level in range(depth):
        width = branching[level] if level < len(branching) else 1
        above = [(*path, rank) for path in above for rank in range(width)]
        nodes += above
    return nodes


def promising(accuracy: Sequence[Sequence[float]], nodes: int, depth: int) -> list[tuple[float, Ranks]]:
    """The `nodes` most promising nodes that form a tree (2401.10774, section 2.3.3), each with its promise, best first.

    accuracy: per head and rank the chance that this choice is right. A node's promise is the product of the chances
    along its path; that is how much it adds to the expected acceptance length. Products only fall along a path, so the
    next best node always hangs on one that is chosen already.

    Example: accuracy [[0.6, 0.2], [0.5, 0.1]], 3 nodes -> (0,) 0.6, (0, 0) 0.3, (1,) 0.2.
    """
    heap: list[tuple[float, int, Ranks]] = []
    chosen: list[tuple[float, Ranks]] = []

    def offer(parent: Ranks, promise: float) -> None:
        if len(parent) < min(depth, len(accuracy)):
            for rank, share in enumerate(accuracy[len(parent)]):
                heapq.heappush(heap, (-promise * share, len(parent), (*parent, rank)))

    offer((), 1.0)
    while heap and len(chosen) < nodes:
        negative, _, path = heapq.heappop(heap)
        chosen.append((-negative, path))
        offer(path, -negative)
    return chosen


def level_by_level(paths: Iterable[Ranks]) -> list[Ranks]:
    """Nodes in topological order."""
    return sorted(paths, key=lambda path: (len(path), path))


def sparse_tree(accuracy: Sequence[Sequence[float]], nodes: int, depth: int) -> list[Ranks]:
    """The `nodes` most promising nodes that form a tree, level by level."""
    return level_by_level(path for _, path in promising(accuracy, nodes, depth))


class FixedTree:
    """The nodes of every round's tree, where they depend on nothing but its depth."""

    def __init__(self, paths: Callable[[int], Sequence[Ranks]]) -> None:
        """paths: from the depth to the nodes, level by level."""
        self._paths = paths
        self._trees: dict[int, tuple[Ranks, ...]] = {}

    def tree(self, depth: int) -> tuple[Ranks, ...]:
        """The round's nodes, at most `depth` levels, level by level."""
        if depth not in self._trees:
            self._trees[depth] = tuple(self._paths(depth))
        return self._trees[depth]

    def learn(self, verdict: Verdict) -> None:
        """Learn from a round that is over: nothing changes here."""


class FittedTree:
    """As many of the most promising nodes as pay here (`decoding.draft_size`)."""

    def __init__(self, size: DraftSize, accuracy: Sequence[Sequence[float]]) -> None:
        """accuracy: see `promising`; what is accepted corrects its scale."""
        self.size = size
        self.accuracy = accuracy
        self._known: dict[tuple[int, float], tuple[list[float], list[Ranks]]] = {}
        self._trees: dict[tuple[int, float, int], tuple[Ranks, ...]] = {}
        self._tree: tuple[Ranks, ...] = ()

    def tree(self, depth: int) -> tuple[Ranks, ...]:
        """The round's nodes, at most `depth` levels, level by level. There may be none."""
        # In steps, so that few trees are built.
        trust = round(self.size.trust, 1)
        if (depth, trust) not in self._known:
            scaled = [[min(1.0, trust * share) for share in shares] for shares in self.accuracy]
            best = promising(scaled, MOST, depth)
            self._known[depth, trust] = [promise for promise, _ in best], [path for _, path in best]
        promises, paths = self._known[depth, trust]
        key = depth, trust, self.size.fit(promises)
        if key not in self._trees:
            self._trees[key] = tuple(level_by_level(paths[: key[2]]))
        self._tree = self._trees[key]
        return self._tree

    def learn(self, verdict: Verdict) -> None:
        """Learn from a round that is over, in which unfinished rows verified the last tree or none."""
        expected, accepted = 0.0, 0
        for path, tokens, reached in zip(verdict.paths, verdict.tokens, verdict.reached, strict=True):
            if tokens and reached:  # else the row had no tree
                # The children of the root and of each accepted node were judged.
                judged = {(), *(self._tree[node] for node in path)}
                children = (child for child in self._tree if child[:-1] in judged)
                expected += sum(self.accuracy[len(child) - 1][child[-1]] for child in children)
                accepted += len(path)
        self.size.learn(expected, accepted, verdict)


@dataclass(frozen=True, slots=True)
class Layout:
    """A static tree, ready to be filled with tokens from a table `[depth x width]` of each level's choices, width ranks
    a level.

    slots: each node's entry in that table where it holds the most likely tokens: (level, rank). draws: its entry where
    the table holds draws: (level, i) for the i-th child of a node. sources: the level from whose distribution the
    children of the root and of each node are drawn, up to the last node that has children.
    """

    depth: int
    width: int
    parents: list[int]
    slots: list[int]
    draws: list[int]
    sources: list[int]

    @classmethod
    def of(cls, paths: Sequence[Ranks], vocabulary: int) -> Layout:
        """The layout of nodes in topological order. Nodes whose rank is beyond the vocabulary are left out."""
        paths = [path for path in paths if max(path) < vocabulary]
        index = {path: node for node, path in enumerate(paths)}
        width = 1 + max(map(max, paths))
        parents = [index.get(path[:-1], -1) for path in paths]
        births = [parents[:node].count(parent) for node, parent in enumerate(parents)]
        return cls(
            depth=max(map(len, paths)),
            width=width,
            parents=parents,
            slots=[(len(path) - 1) * width + path[-1] for path in paths],
            draws=[(len(path) - 1) * width + birth for path, birth in zip(paths, births, strict=True)],
            sources=[0, *(len(path) for path in paths[: max(parents) + 1])],
        )

    def fill(
        self, logits: Tensor, context: Context, *, ranked: bool = False, vocabulary: Tensor | None = None
    ) -> Draft:
        """The tree filled with tokens by `logits` `[B, depth, Vd]`: the most likely ones if greedy or `ranked`, else
        drawn ones.

        vocabulary: `[Vd]`, the target's tokens that the logits are of; None: all.
        """
        from specrig.decoding.sampling import top
        from specrig.runtime.device import constant

        probs = None
        if ranked or context.sampler.greedy:
            # [B, depth, V] -> the table of the most likely tokens [B, depth · width] -> one token a node [B, n].
            tokens = top(logits, self.width).flatten(1)[:, constant(tuple(self.slots), logits.device)]
        else:
            counts = [min(depth, self.depth) for depth in context.depths]
            # A row draws for no more levels than it can use, so that it samples the same in a batch as alone.
            drawn, probs = context.sampler.candidates(logits, self.width, counts)
            tokens = drawn.flatten(1)[:, constant(tuple(self.draws), logits.device)]
        if vocabulary is not None:
            tokens = vocabulary[tokens]
        if self.parents == list(range(-1, len(self.parents) - 1)):
            return Draft(tokens, probs=probs, vocabulary=vocabulary)  # a chain: cheaper to verify
        return Draft(
            tokens,
            [self.parents] * len(tokens),
            None if probs is None else probs[:, constant(tuple(self.sources), logits.device)],
            vocabulary=vocabulary,
        )


@dataclass(frozen=True, slots=True)
class Level:
    """How one level of a static tree is filled from its m parents' choices, a table `[m x width]`.

    open: m. slots, draws: each node's entry in that table, by its rank, or by how many siblings were born before it.
    opened: which of the level's nodes have children; origins: the position of their parents among this level's m.
    """

    open: int
    width: int
    slots: tuple[int, ...]
    draws: tuple[int, ...]
    opened: tuple[int, ...]
    origins: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A static tree, ready to be filled level by level.

    sources: which of the nodes that have children, counted from the root 0, each node is, up to the last that has any.
    """

    levels: list[Level]
    parents: list[int]
    sources: tuple[int, ...]

    @property
    def depth(self) -> int:
        """How many levels it has."""
        return len(self.levels)

    @classmethod
    def of(cls, paths: Sequence[Ranks], vocabulary: int) -> Plan:
        """The plan of nodes in topological order, level by level. Nodes whose rank is beyond the vocabulary are left
        out.

        Example: (0,) (1,) (0, 0): the first level has one parent, the root, and two nodes, of which the first has a
        child.
        """
        paths = [path for path in paths if max(path) < vocabulary]
        index = {path: node for node, path in enumerate(paths)}
        having = {path[:-1] for path in paths}
        levels: list[Level] = []
        above: list[Ranks] = [()]
        number: dict[Ranks, int] = {(): 0}
        for depth in range(1, 1 + max(map(len, paths))):
            members = [path for path in paths if len(path) == depth]
            position = {path: at for at, path in enumerate(above)}
            width = 1 + max(path[-1] for path in members)
            births = [sum(other[:-1] == path[:-1] for other in members[:at]) for at, path in enumerate(members)]
            opened = [at for at, path in enumerate(members) if path in having]
            levels.append(
                Level(
                    open=len(above),
                    width=width,
                    slots=tuple(position[path[:-1]] * width + path[-1] for path in members),
                    draws=tuple(
                        position[path[:-1]] * width + birth for path, birth in zip(members, births, strict=True)
                    ),
                    opened=tuple(opened),
                    origins=tuple(position[members[at][:-1]] for at in opened),
                )
            )
            above = [members[at] for at in opened]
            number |= {path: len(number) + at for at, path in enumerate(above)}
        parents = [index.get(path[:-1], -1) for path in paths]
        return cls(levels, parents, (0, *(number.get(path, 0) for path in paths[: max(parents) + 1])))

    def fill(
        self,
        children: Callable[[int, Tensor], Tensor],
        context: Context,
        *,
        ranked: bool = False,
        vocabulary: Tensor | None = None,
    ) -> Draft:
        """The tree filled with tokens, level by level: the most likely ones if greedy or `ranked`, else drawn ones.

        children: from a level and the tokens `[B, m]` of its m nodes with children, at first the contexts' last ones,
        to the logits `[B, m, Vd]` of their children. vocabulary: as in `Layout.fill`.
        """
        import torch

        from specrig.decoding.sampling import top
        from specrig.runtime.device import constant, on_device

        sampler = context.sampler
        ranked = ranked or sampler.greedy
        opened = on_device([tokens[-1:] for tokens in context.tokens], sampler.device)
        tokens: list[Tensor] = []
        probs: list[Tensor] = []
        for depth, level in enumerate(self.levels):
            logits = children(depth, opened)
            if ranked:
                chosen = top(logits, level.width)
            else:
                # A row draws for no more levels than it can use, so that it samples the same in a batch as alone.
                counts = [level.open * (own > depth) for own in context.depths]
                chosen, q = sampler.candidates(logits, level.width, counts)
                assert q is not None
                probs.append(q)
            # The table of choices [B, m · width] -> the level's nodes [B, n].
            nodes = chosen.flatten(1)[:, constant(level.slots if ranked else level.draws, logits.device)]
            nodes = nodes if vocabulary is None else vocabulary[nodes]
            tokens.append(nodes)
            opened = nodes[:, constant(level.opened, logits.device)] if level.opened else opened
        sources = torch.cat(probs, 1)[:, constant(self.sources, opened.device)] if probs else None
        chain = self.parents == list(range(-1, len(self.parents) - 1))  # cheaper to verify
        # Levels that a row drew no numbers for are not offered: traversal would judge them, from the leaves up.
        sizes = [0, *accumulate(len(level.slots) for level in self.levels)]
        lengths = [sizes[min(own, self.depth)] for own in context.depths]
        return Draft(
            torch.cat(tokens, 1),
            None if chain else [self.parents] * len(opened),
            sources,
            lengths=None if min(lengths) == sizes[-1] else lengths,
            vocabulary=vocabulary,
        )
