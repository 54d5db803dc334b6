"""Tree speculation with a draft model: several continuations a level, verified in one target pass.

SpecInfer, 2305.09781. At temperature 0 a node's children are the draft's most likely tokens. Above it they are drawn
from the draft's distribution without replacement, as multi-candidate rejection sampling needs them (Algorithm 2 there).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from specrig.decoding.static_tree import Plan, regular_tree
from specrig.decoding.types import Context, Draft, Drafter, OwnVocabulary

if TYPE_CHECKING:
    from torch import Tensor


class Tree(Drafter):
    """The draft model runs once a level, over all nodes drafted so far; its cache keeps nothing but the context."""

    name = "tree"
    summary = "draft-model tree, several candidates a level verified in one pass (SpecInfer 2305.09781)"
    family = "draft model"
    needs = ("draft",)
    translates = True

    class Options(OwnVocabulary):
        """branching: children a node has on each level; levels beyond the list have one. acceptance: above temperature
        0; traversal (2505.12398) keeps the distribution too. vocabularies: how a draft of another vocabulary drafts.
        """

        branching: tuple[int, ...] = Field((3, 2, 1, 1), min_length=1)
        acceptance: Literal["exact", "traversal"] = "exact"

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """Prefill the draft model with the prompts."""
        self.plans: dict[int, Plan] = {}
        self.model = self.resources.model("draft")
        self.model.prefill_like(self.resources.target, context.tokens, context.done)

    def propose(self, context: Context, k: int) -> Draft:
        """Grow the tree level by level."""
        import torch

        if k not in self.plans:
            self.plans[k] = Plan.of(regular_tree(self.options.branching, k), self.model.vocab_size)
        plan = self.plans[k]
        grown: list[Tensor] = []

        def children(level: int, tokens: Tensor) -> Tensor:
            """The logits of the children of a level's nodes `tokens` `[B, m]`."""
            if not level:
                return self.model.catch_up(context.tokens, context.done).unsqueeze(1)
            # The whole tree runs again, since the cache keeps none of it; only the new level's logits are read.
            grown.append(tokens)
            nodes = torch.cat(grown, 1)
            parents = [plan.parents[: nodes.shape[1]]] * context.batch_size
            return self.model.forward(nodes, parents=parents)[0][:, -tokens.shape[1] :]

        return plan.fill(children, context)

    def passes(self) -> dict[int, tuple[int, float]]:
        """The draft model's bare forward passes."""
        return self.model.pass_totals()
