"""EAGLE-2: the same head as EAGLE drafts a tree whose shape follows its own confidence.

Li et al., 2406.16858. A node's value is the product of the head's probabilities along its path, which tracks the chance that the
path is accepted (section 3). Expansion (4.1): on each level the top_k nodes of highest value get top_k children each. Reranking
(4.2): of all nodes drafted, on all levels, the `nodes` of highest value are verified. A child is never worth more than its parent,
so with parents first among equals the chosen nodes form a tree.

Example, values: a .6, b .3 below the root; aa .5, ab .05 below a; ba .2, bb .01 below b. The best 3 are a, aa, b.

Above temperature 0 the candidates stay the head's ranking, nothing is drawn: each is a deterministic candidate (`probs=None`, a
one-hot draft distribution), and multi-candidate rejection over the siblings, each tried against what the ones before have left
of the target's distribution, is exact whatever tree is offered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from specrig.decoding.drafters.eagle import Eagle
from specrig.decoding.types import Context, Draft, MethodOptions

if TYPE_CHECKING:
    from torch import Tensor


def rerank(values: Tensor, parents: list[list[int]], nodes: int) -> tuple[Tensor, list[list[int]]]:
    """Of `values` `[B, N]` (log-probabilities of paths) the best `nodes` a row, in their old order, with their parents.

    parents: per row N indices of earlier nodes, -1 for the root. Returns indices `[B, n]` and the parents among the chosen.
    """
    import torch

    # Stable: of a parent and a child of equal value the parent, which has the lower index, comes first.
    order = torch.sort(values, dim=-1, descending=True, stable=True).indices
    chosen = torch.sort(order[:, :nodes], dim=-1).values
    kept = []
    for indices, row in zip(chosen.tolist(), parents, strict=True):
        place = {-1: -1} | {node: index for index, node in enumerate(indices)}
        kept.append([place[row[node]] for node in indices])
    return chosen, kept


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
        best = logits.float().log_softmax(-1).topk(width, -1)
        tokens, values, parents = [best.indices], [best.values], [torch.full_like(best.indices, -1)]
        expanded = torch.arange(width, device=logits.device).expand(len(logits), -1)  # of the last level's candidates
        features = feature.unsqueeze(1).expand(-1, width, -1)
        above, first = None, 0
        for _ in range(k - 1):
            logits, predicted = self.head.branch(tokens[-1].gather(1, expanded), features, above)
            best = logits.float().log_softmax(-1).topk(width, -1)
            value = (values[-1].gather(1, expanded).unsqueeze(-1) + best.values).flatten(1)
            parents.append((first + expanded).repeat_interleave(width, 1))
            first += tokens[-1].shape[1]
            tokens.append(best.indices.flatten(1))
            values.append(value)
            expanded = value.topk(width, -1).indices
            above = expanded // width
            features = predicted.gather(1, above.unsqueeze(-1).expand(-1, -1, predicted.shape[-1]))
        chosen, kept = rerank(torch.cat(values, 1), torch.cat(parents, 1).tolist(), self.options.nodes)
        return Draft(torch.cat(tokens, 1).gather(1, chosen), parents=kept)
