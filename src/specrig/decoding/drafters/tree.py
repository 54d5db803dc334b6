"""Tree speculation with a draft model: several continuations a level, verified in one target pass.

SpecInfer, 2305.09781. At temperature 0 a node's children are the draft's most likely tokens. Above it they are drawn
from the draft's distribution without replacement, as multi-candidate rejection sampling needs them (Algorithm 2 there).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from specrig.decoding.types import Context, Draft, Drafter, MethodOptions

if TYPE_CHECKING:
    from torch import Tensor


def topology(branching: list[int], depth: int) -> list[list[int]]:
    """Levels of a regular tree as lists of parent indices (-1: root); beyond `branching` every node has one child.

    Example: branching 2-1, depth 3: two nodes below the root, one below each, one below each of those.
    """
    levels: list[list[int]] = []
    above, count = [-1], 0
    for level in range(depth):
        width = branching[level] if level < len(branching) else 1
        levels.append([parent for parent in above for _ in range(width)])
        above = list(range(count, count + len(levels[-1])))
        count += len(levels[-1])
    return levels


class Tree(Drafter):
    """The draft model runs once a level, over all nodes drafted so far; its cache keeps nothing but the context."""

    name = "tree"
    summary = "draft-model tree, several candidates a level verified in one pass (SpecInfer 2305.09781)"
    family = "draft model"
    needs = ("draft",)

    class Options(MethodOptions):
        """branching: children a node has on each level; levels beyond the list have one. acceptance: above temperature
        0; traversal (2505.12398) keeps the distribution too.
        """

        branching: tuple[int, ...] = Field((3, 2, 1, 1), min_length=1)
        acceptance: Literal["exact", "traversal"] = "exact"

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """Prefill the draft model with the prompts."""
        self.model = self.resources.model("draft")
        self.model.prefill_like(self.resources.target, context.tokens, context.done)

    def propose(self, context: Context, k: int) -> Draft:
        """Grow the tree level by level."""
        import torch

        B = context.batch_size
        logits = self.model.catch_up(context.tokens, context.done).unsqueeze(1)
        levels = topology(list(self.options.branching), k)
        tokens: list[Tensor] = []
        probs: list[Tensor] = []
        parents: list[int] = []
        for level, nodes in enumerate(levels):
            # Children of every node of the level above, by its logits: [B, m, width] -> [B, m · width].
            width = len(nodes) // max(1, len(levels[level - 1]) if level else 1)
            counts = [0 if done else logits.shape[1] for done in context.done]
            chosen, q = context.sampler.candidates(logits, width, counts)
            tokens.append(chosen.reshape(B, -1))
            parents += nodes
            if q is not None:
                probs.append(q)
            if level + 1 < len(levels):
                # The whole tree runs again, since the cache keeps none of it; only the new level's logits are read.
                grown = torch.cat(tokens, 1)
                logits = self.model.forward(grown, parents=[parents] * B)[0][:, -len(nodes) :]
        return Draft(torch.cat(tokens, 1), parents=[parents] * B, probs=torch.cat(probs, 1) if probs else None)

    def passes(self) -> dict[int, tuple[int, float]]:
        """The draft model's bare forward passes."""
        return self.model.pass_totals()
