"""Hydra: Medusa's static tree, filled by heads that read the tokens drafted above them.

Ankner et al., 2402.05109. A level is one pass of its head over all nodes that have children, each with its own path.
Medusa's heads give every node of a level the same choices instead; here a choice fits the one before it, for one pass a
level instead of one in all.

Above temperature 0 each node's children are drawn from its own distribution without replacement. The shape of the tree
is fixed before anything is drawn, and a node takes its draws in their order, whatever ranks the layout gave its
children.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specrig.decoding.drafters.medusa import Medusa
from specrig.decoding.types import Context, Draft, PaperRound, empty_draft

if TYPE_CHECKING:
    from torch import Tensor


class Hydra(Medusa):
    """The heads read the state that the LM head chose the last token from, the last token, and what was drafted behind
    it.
    """

    name = "hydra"
    summary = "Medusa heads that read the tokens drafted before, a static tree (Hydra 2402.05109)"
    needs = ("hydra",)
    paper = PaperRound(width=64, passes=4, squares=2, outputs=1, tree=True)

    def load(self) -> Any:
        """The trained heads."""
        from specrig.heads.hydra import module as hydra

        return hydra.load(self.resources.head("hydra"), self.resources.target)

    def propose(self, context: Context, k: int) -> Draft:
        """One pass of a head a level."""
        import torch

        from specrig.runtime.device import constant

        paths = self.shape.tree(min(k, self.heads.count))
        if not paths:
            return empty_draft(context)
        heads, plan = self.heads, self.plan(paths)
        inputs = self.hidden.unsqueeze(1)

        def children(depth: int, tokens: Tensor) -> Tensor:
            """What each of the m nodes with children is continued from, `[B, m, (depth + 2) D]`: the state and the
            tokens of its path.
            """
            nonlocal inputs
            above = inputs[:, constant(plan.levels[depth - 1].origins, inputs.device)] if depth else inputs
            inputs = torch.cat((above, heads.embed(tokens)), -1)
            return heads(inputs, depth, tokens)

        ranked = self.options.acceptance == "typical"
        return plan.fill(children, context, ranked=ranked, vocabulary=heads.vocabulary)
