"""EAGLE-2: the same head as EAGLE drafts a tree whose shape follows its own confidence.

Li et al., 2406.16858. A node's value is the product of the head's probabilities along its path, which tracks the chance
that the path is accepted (section 3). Expansion (4.1): on each level the top_k nodes of highest value get top_k
children each. Reranking (4.2): of all nodes drafted, on all levels, the `nodes` of highest value are verified. A child
is never worth more than its parent, so with parents first among equals the chosen nodes form a tree.

Example, values: a .6, b .3 below the root; aa .5, ab .05 below a; ba .2, bb .01 below b. The best 3 are a, aa, b.

Above temperature 0 a node's children are drawn from the head's distribution q without replacement. Then the shape of
the tree must not depend on what was drawn. If a sibling were kept because it turned out likely, or dropped because its
descendants turned out unlikely, it would no longer be a draw from q, and rejection sampling would no longer be exact.
So a slot in the tree gets its worth before its token is drawn: the worth of its parent, times the chance that the j-th
child drawn there is the one that is accepted. That chance is estimated from q alone (see `draft_size.DRAWN`).

Why this is exact: worth falls from parent to child and from sibling to sibling. So the chosen slots are those that a
best-first search would find one by one, and it decides on each slot knowing only the tokens found before. Given those,
the slot's token is a fresh draw from q without its elder siblings, which is all that multi-candidate rejection needs.
Expansion finds the same slots, because whatever outranks a slot also outranks everything below that slot. Of equals,
elders and parents come first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from pydantic import Field

from specrig.decoding.draft_size import DRAWN
from specrig.decoding.drafters.eagle import Eagle
from specrig.decoding.types import Context, Draft, MethodOptions, PaperRound
from specrig.heads.base import Foreign

if TYPE_CHECKING:
    from torch import Tensor

Below: TypeAlias = "Callable[[int, Tensor, Tensor | None], Tensor]"
"""From a level, the tokens `[B, w]` of the nodes expanded above it and their parents among those expanded before them
(`[B, w]`; None: the root) to the logits `[B, w, Vd]` of their children."""


def rerank(values: Tensor, parents: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Choose each row's `nodes` nodes of highest value (2406.16858, section 4.2); they stay in their old order.

    values: `[B, N]`, log-probabilities of paths; parents: `[B, N]`, indices of earlier nodes, -1 for the root. Returns
    the chosen indices `[B, n]` and, as slots among the chosen, their parents `[B, n]`.
    """
    import torch

    # Stable: of a parent and a child of equal value the parent, which has the lower index, comes first.
    order = torch.sort(values, dim=-1, descending=True, stable=True).indices
    chosen = torch.sort(order[:, :nodes], dim=-1).values
    # slot[b, i]: where node i stands among the chosen. A chosen node's parent is chosen too, since its value is no
    # lower.
    slot = torch.full_like(parents, -1).scatter_(
        1, chosen, torch.arange(chosen.shape[1], device=chosen.device).expand_as(chosen)
    )
    above = parents.gather(1, chosen)
    return chosen, torch.where(above < 0, above, slot.gather(1, above.clamp(min=0)))


def _sources(q: Tensor | None, parents: Tensor, chosen: Tensor, width: int) -> Tensor | None:
    """`[B, 1 + n, Vd]`: the distributions that the children of the root and of each chosen node were drawn from; None
    if greedy.

    q: `[B, M, Vd]`, the root's and then those of the expanded nodes, in the order of their children, `width` children
    each. parents: `[B, N]`, of all nodes drafted; chosen: `[B, n]`. A node without children gets the root's
    distribution, which is never read.
    """
    import torch

    if q is None:
        return None
    B, N = parents.shape
    # source[b, i + 1]: the row of q that the children of node i come from. Every `width`-th node is the first child of
    # a new parent.
    source = torch.zeros(B, N + 1, dtype=torch.long, device=q.device)
    source.scatter_(1, parents[:, ::width] + 1, torch.arange(q.shape[1], device=q.device).expand(B, -1))
    rows = torch.cat((source[:, :1], source[:, 1:].gather(1, chosen)), 1)
    return q[torch.arange(B, device=q.device).unsqueeze(1), rows]


class Eagle2(Eagle):
    """The head runs once a level, over that level's expanded nodes only. Every row of a batch has its own tree."""

    name = "eagle2"
    summary = "EAGLE's head drafts a tree by its confidence, the best nodes are verified (EAGLE-2, 2406.16858)"
    foreign: ClassVar[Mapping[str, Foreign]] = {
        "sglang": Foreign(
            "EAGLE",
            part="eagle",
            renamed={"top_k": "--speculative-eagle-topk", "nodes": "--speculative-num-draft-tokens"},
        ),
    }
    paper = PaperRound(width=61, passes=6, layers=1, squares=2, outputs=1)

    class Options(MethodOptions):
        """nodes: tree size m that is verified (the paper's 60 is for GPUs); top_k: nodes expanded a level, and their
        children.
        """

        nodes: int = Field(60, ge=1, le=128)
        top_k: int = Field(10, ge=1, le=16)

    def propose(self, context: Context, k: int) -> Draft:
        """Expand k levels, one pass of the head each, then rerank."""
        logits, feature = self.head.advance(context.tokens, context.done)
        predicted = feature.unsqueeze(1)  # [B, m, D], by the nodes of the level above that were expanded

        def below(_: int, tokens: Tensor, above: Tensor | None) -> Tensor:
            # The head runs over the expanded nodes alone: logits [B, w, V], predicted features [B, w, D].
            nonlocal predicted
            over = tokens.new_zeros(tokens.shape) if above is None else above
            features = predicted.gather(1, over.unsqueeze(-1).expand(-1, -1, predicted.shape[-1]))
            logits, predicted = self.head.branch(tokens, features, above)
            return logits

        # Beyond the best `nodes` of a level nothing can be chosen: its betters on that level would fill the tree.
        width = min(self.options.top_k, self.options.nodes)
        return self.grown(context, logits, below, k, width, lambda _: self.options.nodes)[0]

    def grown(
        self, context: Context, logits: Tensor, below: Below, k: int, width: int, nodes: Callable[[Tensor], int]
    ) -> tuple[Draft, Tensor]:
        """Expand k levels (2406.16858, section 4.1), then rerank (4.2). Returns the tree and its values `[B, n]`.

        logits: `[B, Vd]`, of the root's children. width: w, the nodes expanded a level, and the children of each, so
        that a level below the first drafts w · w nodes. nodes: from all nodes' values `[B, N]` to how many are chosen.
        """
        import torch

        # Level 1: the root's w children, [B, w]. They hang on the context, -1. Lists hold a tensor a level.
        width = min(width, logits.shape[-1])
        best, value, q = self._children(context, logits.unsqueeze(1), width)
        tokens, values, parents, probs = [best.flatten(1)], [value.flatten(1)], [torch.full_like(best[:, 0], -1)], [q]
        # Which of the last level's nodes are expanded, [B, w].
        expanded = torch.arange(width, device=logits.device).expand(len(logits), -1)
        # Each expanded node's parent among those expanded before it; index of the level's first node.
        above, first = None, 0
        for level in range(1, k):
            logits = below(level, tokens[-1].gather(1, expanded), above)
            best, value, q = self._children(context, logits, width)
            # A path's value is its parent's times its own last step: [B, w, 1] + [B, w, w] -> [B, w · w] in logarithms.
            value = (values[-1].gather(1, expanded).unsqueeze(-1) + value).flatten(1)
            parents.append((first + expanded).repeat_interleave(width, 1))
            first += tokens[-1].shape[1]
            tokens.append(best.flatten(1))
            values.append(value)
            probs.append(q)
            # The next level expands the w nodes of highest value. Stable, so that equals keep their order.
            expanded = torch.sort(value, dim=-1, descending=True, stable=True).indices[:, :width]
            above = expanded // width
        # Rerank all nodes of all levels, N of them, to the best n.
        ancestry, worth = torch.cat(parents, 1), torch.cat(values, 1)
        chosen, kept = rerank(worth, ancestry, nodes(worth))
        drawn = torch.cat([q for q in probs if q is not None], 1) if q is not None else None
        sources = _sources(drawn, ancestry, chosen, width)
        tree = Draft(
            torch.cat(tokens, 1).gather(1, chosen), kept, sources, width=width, vocabulary=self.head.vocabulary
        )
        return tree, worth.gather(1, chosen)

    def _children(self, context: Context, logits: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """`width` children of each of m nodes by their `logits` `[B, m, Vd]`.

        Returns tokens and the logarithms of their worths, `[B, m, width]` each, and the distributions q `[B, m, Vd]`
        that they were drawn from; None if greedy, where the children are the most likely tokens and their worths the
        probabilities.
        """
        from specrig.decoding.sampling import softmax, top

        if context.sampler.greedy:
            best = top(logits, width)
            return self.head.target_ids(best), softmax(logits, 1.0).gather(-1, best).log(), None
        counts = [logits.shape[1] if depth else 0 for depth in context.depths]
        slots, q = context.sampler.candidates(logits, width, counts)
        assert q is not None
        # The j-th draw: (1 - DRAWN) times the j-th highest probability, and DRAWN more for the first.
        worth = (1 - DRAWN) * q.gather(-1, top(q, width))
        worth[..., 0] += DRAWN
        # Rounding must not put a child above its parent.
        return self.head.target_ids(slots), worth.clamp_(max=1.0).log(), q
