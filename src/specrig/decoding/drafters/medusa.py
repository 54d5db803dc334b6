"""Medusa: heads on the target's last hidden state draft all positions at once, a static tree of their choices is
verified.

Cai et al., 2401.10774. The heads need no pass through a model of their own, but no head knows what the head before it
chose. So several choices of each head are offered, as a tree. A node is named by the path of ranks that leads to it:
(0, 2) is the second head's third choice below the first head's first choice.

Above temperature 0 a head's choices are drawn from its distribution without replacement, once a level, and every node's
children on that level are the first few of these draws. This is exact for three reasons: the shape of the tree is fixed
before anything is drawn, levels are drawn independently of each other, and verification walks down one path, so it
meets each level's draws once. A node takes the draws in their order, whatever ranks the layout gave its children,
because leaving out a draw would change the distribution of the later ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from specrig.decoding.types import Context, Draft, Drafter, MethodOptions, Resources, Verdict

if TYPE_CHECKING:
    from torch import Tensor

    from specrig.decoding.types import Criterion

Ranks = tuple[int, ...]
FALLBACK = (4, 2, 1)
"""Branching of the tree for heads whose accuracies nobody has measured."""


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


def sparse_tree(accuracy: Sequence[Sequence[float]], nodes: int, depth: int) -> list[Ranks]:
    """The `nodes` most promising nodes that form a tree (2401.10774, section 2.3.3), level by level.

    accuracy: per head and rank the chance that this choice is right. A node's promise is the product of the chances
    along its path; that is how much it adds to the expected acceptance length. Products only fall along a path, so the
    next best node always hangs on one that is chosen already.

    Example: accuracy [[0.6, 0.2], [0.5, 0.1]], 3 nodes -> (0,) 0.6, (0, 0) 0.3, (1,) 0.2.
    """
    heap: list[tuple[float, int, Ranks]] = []
    chosen: list[Ranks] = []

    def offer(parent: Ranks, promise: float) -> None:
        if len(parent) < min(depth, len(accuracy)):
            for rank, share in enumerate(accuracy[len(parent)]):
                heapq.heappush(heap, (-promise * share, len(parent), (*parent, rank)))

    offer((), 1.0)
    while heap and len(chosen) < nodes:
        negative, _, path = heapq.heappop(heap)
        chosen.append(path)
        offer(path, -negative)
    return sorted(chosen, key=lambda path: (len(path), path))


@dataclass(frozen=True, slots=True)
class Layout:
    """A static tree, ready to be filled with tokens from a table `[depth x width]` of each level's choices, width ranks
    a level.

    slots: each node's entry in that table where it holds the most likely tokens: (level, rank). draws: its entry where
    the table holds
    draws: (level, i) for the i-th child of a node. sources: the level from whose distribution the children of the root
    and of each node are drawn, up to the last node that has children.
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
        from specrig.runtime.device import constant

        probs = None
        if ranked or context.sampler.greedy:
            # [B, depth, V] -> the table of the most likely tokens [B, depth · width] -> one token a node [B, n].
            tokens = logits.topk(self.width, -1).indices.flatten(1)[:, constant(tuple(self.slots), logits.device)]
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


class TreeOptions(MethodOptions):
    """tree: branching per level of a regular tree; None: the `nodes` most promising nodes by the heads' measured
    accuracies.
    """

    tree: tuple[int, ...] | None = Field(None, min_length=1)
    nodes: int = Field(16, ge=1, le=200)

    def layout(self, accuracy: Sequence[Sequence[float]], depth: int, vocabulary: int) -> Layout:
        """The tree of at most `depth` levels."""
        return Layout.of(self.paths(accuracy, depth), vocabulary)

    def paths(self, accuracy: Sequence[Sequence[float]], depth: int) -> list[Ranks]:
        """Its nodes by their paths of ranks, level by level."""
        if self.tree is None and accuracy:
            return sparse_tree(accuracy, self.nodes, depth)
        return regular_tree(self.tree or FALLBACK, depth)


class Medusa(Drafter):
    """The heads read the hidden state that the LM head chose the last token from; head 0 drafts the token after that
    one.
    """

    name = "medusa"
    summary = "heads on the target's hidden state draft a static tree (Medusa 2401.10774)"
    family = "heads"
    needs = ("medusa",)

    class Options(TreeOptions):
        """acceptance: `exact` is lossless; `typical` (by posterior_threshold and posterior_alpha) is lossy above
        temperature 0.

        `k` bounds the tree's depth, which cannot exceed the number of trained heads.
        """

        acceptance: Literal["exact", "typical"] = "exact"
        posterior_threshold: float = Field(0.09, gt=0, le=1)
        posterior_alpha: float = Field(0.3, gt=0, le=1)

    def __init__(self, options: MethodOptions, resources: Resources) -> None:
        super().__init__(options, resources)
        self.heads = self.load()
        self.layouts: dict[int, Layout] = {}

    def load(self) -> Any:
        """The trained heads."""
        from specrig.heads.medusa import module as medusa

        return medusa.load(self.resources.head("medusa"), self.resources.target)

    def criterion(self) -> Criterion | None:
        """Medusa's typical acceptance, if asked for."""
        from specrig.decoding.verify_tree import typical_acceptance

        if self.options.acceptance == "exact":
            return None
        return typical_acceptance(self.options.posterior_threshold, self.options.posterior_alpha)

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """Start from the prompts' last positions."""
        from specrig.runtime.device import at_each

        self.heads.watch.clear()
        self.hidden = at_each(hidden, [len(tokens) - 2 for tokens in context.tokens])

    def propose(self, context: Context, k: int) -> Draft:
        """One pass of the heads, all levels at once."""
        layout = self.layouts.get(k)
        if layout is None:
            depth = min(k, self.heads.count)
            layout = self.layouts[k] = self.options.layout(self.heads.accuracy, depth, self.heads.tokens)
        # Typical acceptance asks how likely a candidate is, not where it came from: the paper offers it the most likely
        # ones.
        ranked = self.options.acceptance == "typical"
        return layout.fill(
            self.heads(self.hidden, layout.depth), context, ranked=ranked, vocabulary=self.heads.vocabulary
        )

    def observe(self, verdict: Verdict) -> None:
        """Go on from the node that the round's last token was chosen at."""
        from specrig.runtime.device import at_each

        assert verdict.hidden is not None
        self.hidden = at_each(verdict.hidden, [path[-1] + 1 if path else 0 for path in verdict.paths])

    def passes(self) -> dict[int, tuple[int, float]]:
        """The heads' bare passes."""
        return self.heads.pass_totals()
