"""PARD: a draft model drafts all k tokens in one pass, instead of one after another.

An et al., 2504.18583. The draft reads what is new of the context and k - 1 mask tokens. Its output at the last token is
the first drafted token's, its output at each mask a later one's. No token knows which one was drawn before it, so
acceptance falls faster with depth than `draft_model`'s; drafting costs one pass whatever k is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specrig.decoding.types import ChainOptions, Context, Draft, Drafter, MethodOptions, Resources

if TYPE_CHECKING:
    from torch import Tensor


class Pard(Drafter):
    """The draft's cache holds nothing but the context: masks are never kept, so nothing is ever rolled back."""

    name = "pard"
    summary = "a draft model drafts k tokens in one pass, from mask tokens (PARD 2504.18583)"
    family = "one pass"
    needs = ("pard",)

    class Options(ChainOptions):
        """Those of a chain."""

    def __init__(self, options: MethodOptions, resources: Resources) -> None:
        from specrig.heads.pard import module as pard

        super().__init__(options, resources)
        self.model = pard.load(resources.head("pard"), resources.target)
        self.mask: int = self.model.config.pard_token
        self.vocabulary = pard.drafted_ids(self.model, resources.target)

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """Prefill the draft model with the prompts."""
        self.model.prefill_like(self.resources.target, context.tokens, context.done)

    def propose(self, context: Context, k: int) -> Draft:
        """One pass over each row's new tokens and k - 1 masks; only the new tokens stay in the cache."""
        from specrig.decoding.sampling import argmax
        from specrig.runtime.device import padded

        model = self.model
        rows = zip(context.tokens, context.done, model.lengths, strict=True)
        new = [[] if done else tokens[length:] for tokens, done, length in rows]
        width = max(1, *map(len, new)) + k - 1
        # Logits from each row's last token on: [B, k, V].
        starts = [max(len(row) - 1, 0) for row in new]
        read = padded([[*row, *[self.mask] * (k - 1)] for row in new], width, model.device)
        logits, _ = model.forward(read, last=[range(start, start + k) for start in starts])
        model.keep([range(len(row)) for row in new])
        if context.sampler.greedy:
            return Draft(argmax(logits), vocabulary=self.vocabulary)
        tokens, probs = context.sampler.candidates(logits, 1, [min(depth, k) for depth in context.depths])
        return Draft(tokens[..., 0], probs=probs, vocabulary=self.vocabulary)

    def passes(self) -> dict[int, tuple[int, float]]:
        """The draft model's bare forward passes."""
        return self.model.pass_totals()
