"""Medusa heads on the draft model: k tokens take one pass of the draft model instead of k, and the larger target
verifies them.

The draft model runs what is new of the context. From its last hidden state its LM head drafts the next token, and its
Medusa heads (2401.10774) draft the tokens after that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from specrig.decoding.drafters.medusa import TreeOptions
from specrig.decoding.static_tree import Layout, Plan, Ranks
from specrig.decoding.types import Context, Draft, Drafter, MethodOptions, Resources, Verdict, empty_draft
from specrig.runtime.types import add_passes

if TYPE_CHECKING:
    from torch import Tensor

    from specrig.runtime.model import CachedModel


class MedusaDraft(Drafter):
    """The draft model's cache holds nothing but the context, so nothing is ever rolled back."""

    name = "medusa_draft"
    summary = "the draft model carries Medusa heads, so that k tokens cost one draft pass"
    family = "draft model"
    needs = ("draft", "draft_medusa")

    class Options(TreeOptions):
        """The default is a chain: the heads of a small model are seldom right beyond their first choice."""

        tree: tuple[int, ...] | None = Field((1,), min_length=1)

    def __init__(self, options: MethodOptions, resources: Resources) -> None:
        from specrig.heads.medusa import module as medusa

        super().__init__(options, resources)
        self.model: CachedModel = resources.model("draft")
        self.heads = medusa.load(resources.head("draft_medusa"), self.model)
        self.trees: dict[tuple[Ranks, ...], Layout | Plan] = {}

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """Prefill the draft model with the prompts."""
        self.model.prefill_like(self.resources.target, context.tokens, context.done)
        self.heads.watch.clear()
        # The draft model's own first choices come before its heads'.
        accuracy = [self.heads.first, *self.heads.accuracy] if self.heads.first else []
        self.shape = self.options.shape(accuracy, self)

    def propose(self, context: Context, k: int) -> Draft:
        """One pass of the draft model over what is new, then one pass of its heads."""
        import torch

        heads, tree = self.heads, self._tree(min(k, 1 + self.heads.count))
        if tree is None:
            return empty_draft(context)
        first, state = self._advance(context)
        later = heads(state, tree.depth - 1) if tree.depth > 1 else None
        if isinstance(tree, Layout):
            logits = first if later is None else torch.cat((first, heads.widened(later)), 1)
            return tree.fill(logits, context)

        def children(depth: int, tokens: Tensor) -> Tensor:
            """The draft model itself has read the last token; its heads have not."""
            return first if later is None or not depth else heads.widened(heads.biased(later, depth - 1, tokens))

        return tree.fill(children, context)

    def observe(self, verdict: Verdict) -> None:
        """Learn how large a tree pays, where that decides its size."""
        self.shape.learn(verdict)

    def _tree(self, depth: int) -> Layout | Plan | None:
        """The round's tree of at most so many levels; None where none pays."""
        paths = self.shape.tree(depth)
        if paths and paths not in self.trees:
            kind = Layout if self.heads.markov is None else Plan
            self.trees[paths] = kind.of(paths, self.model.vocab_size)
        return self.trees.get(paths)

    def _advance(self, context: Context) -> tuple[Tensor, Tensor]:
        """Run what is new of every unfinished row: next-token logits `[B, 1, V]`, hidden states `[B, D]` of the last
        tokens.
        """
        from specrig.runtime.device import at_each, padded

        model = self.model
        lengths = model.lengths
        new = [
            [] if done else tokens[n:] for tokens, done, n in zip(context.tokens, context.done, lengths, strict=True)
        ]
        width = max(1, *map(len, new))
        ends = [max(len(row) - 1, 0) for row in new]
        logits, hidden = model.forward(padded(new, width, model.device), last=ends)
        model.keep([range(len(row)) for row in new])
        return logits, at_each(hidden, ends)

    def passes(self) -> dict[int, tuple[int, float]]:
        """Bare passes of the draft model and of its heads, by width."""
        totals = self.model.pass_totals()
        add_passes(totals, self.heads.pass_totals())
        return totals
