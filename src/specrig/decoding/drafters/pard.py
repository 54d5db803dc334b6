"""PARD: a draft model drafts all k tokens in one pass, instead of one after another.

An et al., 2504.18583. The draft reads what is new of the context and k - 1 mask tokens. Its output at the last token is
the first drafted token's, its output at each mask a later one's. No token knows which one was drawn before it, so
acceptance falls faster with depth than `draft_model`'s; drafting costs one pass whatever k is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from specrig.decoding.draft_size import DEARER, DraftSize
from specrig.decoding.types import ChainOptions, Context, Draft, Drafter, MethodOptions, Resources, Verdict

if TYPE_CHECKING:
    from torch import Tensor


class Pard(Drafter):
    """The draft's cache holds nothing but the context: masks are never kept, so nothing is ever rolled back."""

    name = "pard"
    summary = "a draft model drafts k tokens in one pass, from mask tokens (PARD 2504.18583)"
    family = "one pass"
    needs = ("pard",)

    class Options(ChainOptions):
        """length: of the chain that is verified. fixed: k; auto: as far as a pass of that width pays here, k at most
        (`decoding.draft_size`).
        """

        length: Literal["fixed", "auto"] = "fixed"

    def __init__(self, options: MethodOptions, resources: Resources) -> None:
        from specrig.heads.pard import module as pard

        super().__init__(options, resources)
        self.model = pard.load(resources.head("pard"), resources.target)
        self.mask: int = self.model.config.pard_token

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """Prefill the draft model with the prompts."""
        self.model.prefill_like(self.resources.target, context.tokens, context.done)
        self.size = DraftSize(self.resources.pass_costs(), DEARER) if self.options.length == "auto" else None

    def propose(self, context: Context, k: int) -> Draft:
        """One pass over each row's new tokens and k - 1 masks; only the new tokens stay in the cache."""
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
        tokens, probs = context.sampler.candidates(logits, 1, context.depths)
        draft = Draft(tokens[..., 0], probs=probs)
        return draft if self.size is None else self.size.shorten(draft, logits, context.depths)

    def observe(self, verdict: Verdict) -> None:
        """Learn how far drafts are accepted, where that decides their length."""
        if self.size is not None:
            self.size.learn_chains(verdict)

    def passes(self) -> dict[int, tuple[int, float]]:
        """The draft model's bare forward passes."""
        return self.model.pass_totals()
