"""EAGLE-2: the same head as EAGLE drafts a tree whose shape follows its own confidence.

Li et al., 2406.16858. A node's value is the product of the head's probabilities along its path, which tracks the chance that the
path is accepted (section 3). Expansion (4.1): on each level the top_k nodes of highest value get top_k children each. Reranking
(4.2): of all nodes drafted, on all levels, the `nodes` of highest value are verified. A child is never worth more than its parent,
so with parents first among equals the chosen nodes form a tree.

Example, values: a .6, b .3 below the root; aa .5, ab .05 below a; ba .2, bb .01 below b. The best 3 are a, aa, b.

Above temperature 0 a node's children are drawn from the head's distribution q without replacement, and a tree whose shape follows
what was drawn is a trap: to keep a sibling because it turned out likely, or to drop it because its descendants did not, makes it
no draw from q any more. So the worth of a place in the tree is settled before its token is drawn: that of the parent, times the
chance that the j-th child drawn there is the one accepted, estimated from q alone (`DRAWN`). Worth falls from parent to child and
from sibling to sibling, hence the chosen places are those that a best-first search would reveal one by one, deciding on each with
nothing known but what it has revealed before. Given all that, the next token is a fresh draw from q without its elder siblings,
which is all that multi-candidate rejection asks. (Expansion agrees: a place that outranks this one outranks all below this one,
so nothing below this one can keep it from being expanded. Equals keep their order, elders and parents first.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from specrig.decoding.drafters.eagle import Eagle
from specrig.decoding.types import Context, Draft, MethodOptions

if TYPE_CHECKING:
    from torch import Tensor


DRAWN = 0.5
"""Share of positions at which the target's distribution is taken to be the head's own, so that the first draw is accepted; at the
others its next token is taken to be certain, and the j-th draw is right about as often as the j-th most likely token. A wrong
share costs speed, nothing else."""


def rerank(values: Tensor, parents: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Of `values` `[B, N]` (log-probabilities of paths) the best `nodes` a row, in their old order, with their parents.

    parents: `[B, N]` indices of earlier nodes, -1 for the root. Returns indices `[B, n]` and the parents among the chosen `[B, n]`.
    """
    import torch

    # Stable: of a parent and a child of equal value the parent, which has the lower index, comes first.
    order = torch.sort(values, dim=-1, descending=True, stable=True).indices
    chosen = torch.sort(order[:, :nodes], dim=-1).values
    place = torch.full_like(parents, -1).scatter_(
        1, chosen, torch.arange(chosen.shape[1], device=chosen.device).expand_as(chosen)
    )
    above = parents.gather(1, chosen)
    return chosen, torch.where(above < 0, above, place.gather(1, above.clamp(min=0)))


def _sources(q: Tensor | None, parents: Tensor, chosen: Tensor, width: int) -> Tensor | None:
    """The distributions that the children of the root and of each chosen node were drawn from; those of childless nodes mean nothing.

    q: `[B, M, Vd]` the root's, then those of the expanded nodes in the order of their children, `width` each; parents: `[B, N]`.
    """
    import torch

    if q is None:
        return None
    B, N = parents.shape
    source = torch.zeros(B, N + 1, dtype=torch.long, device=q.device)
    source.scatter_(1, parents[:, ::width] + 1, torch.arange(q.shape[1], device=q.device).expand(B, -1))
    rows = torch.cat((source[:, :1], source[:, 1:].gather(1, chosen)), 1)
    return q[torch.arange(B, device=q.device).unsqueeze(1), rows]


class Eagle2(Eagle):
    """The head runs once a level, over that level's expanded nodes only. Every row of a batch has its own tree."""

    name = "eagle2"
    summary = "EAGLE's head drafts a tree by its confidence, the best nodes are verified (EAGLE-2, 2406.16858)"

    class Options(MethodOptions):
        """nodes: tree size m that is verified (the paper's 60 is for GPUs); top_k: nodes expanded a level, and their children."""

        nodes: int = Field(60, ge=1, le=128)
        top_k: int = Field(10, ge=1, le=16)

    def propose(self, context: Context, k: int) -> Draft:
        """Expand k levels, then rerank."""
        import torch

        logits, feature = self.head.advance(context)
        # Beyond the best `nodes` of a level nothing can be chosen: its betters on that level would fill the tree.
        width = min(self.options.top_k, self.options.nodes, logits.shape[-1])
        best, value, q = self._children(context, logits.unsqueeze(1), width)
        tokens, values, parents, probs = [best.flatten(1)], [value.flatten(1)], [torch.full_like(best[:, 0], -1)], [q]
        expanded = torch.arange(width, device=logits.device).expand(len(logits), -1)  # of the last level's candidates
        features = feature.unsqueeze(1).expand(-1, width, -1)
        above, first = None, 0
        for _ in range(k - 1):
            logits, predicted = self.head.branch(tokens[-1].gather(1, expanded), features, above)
            best, value, q = self._children(context, logits, width)
            value = (values[-1].gather(1, expanded).unsqueeze(-1) + value).flatten(1)
            parents.append((first + expanded).repeat_interleave(width, 1))
            first += tokens[-1].shape[1]
            tokens.append(best.flatten(1))
            values.append(value)
            probs.append(q)
            # Stable, for the sake of equals.
            expanded = torch.sort(value, dim=-1, descending=True, stable=True).indices[:, :width]
            above = expanded // width
            features = predicted.gather(1, above.unsqueeze(-1).expand(-1, -1, predicted.shape[-1]))
        ancestry = torch.cat(parents, 1)
        chosen, kept = rerank(torch.cat(values, 1), ancestry, self.options.nodes)
        drawn = torch.cat([q for q in probs if q is not None], 1) if q is not None else None
        sources = _sources(drawn, ancestry, chosen, width)
        return Draft(torch.cat(tokens, 1).gather(1, chosen), kept, sources, width=width, vocabulary=self.head.vocabulary)

    def _children(self, context: Context, logits: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """`width` children of each of `logits` `[B, m, Vd]`: tokens and log-worths `[B, m, width]`; q `[B, m, Vd]`, None if greedy."""
        if context.sampler.greedy:
            best = logits.float().log_softmax(-1).topk(width, -1)
            return self.head.named(best.indices), best.values, None
        counts = [0 if done else logits.shape[1] for done in context.done]
        places, q = context.sampler.candidates(logits, width, counts)
        assert q is not None
        worth = (1 - DRAWN) * q.topk(width, -1).values
        worth[..., 0] += DRAWN
        return self.head.named(places), worth.clamp_(max=1.0).log(), q  # rounding must not put a child above its parent
