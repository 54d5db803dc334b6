"""Suffix decoding where the text repeats itself, a draft model where it does not.

Hybrid SuffixDecoding (Oliaro et al., 2411.04975): the suffix tree says how many tokens of its draft it expects to be
accepted, the sum of their probabilities. Where that is at least `least`, its draft is verified and the draft model is
not run; else the draft model drafts `draft_k` tokens. The choice depends on the text alone, before anything is drawn,
so the output stays the target's.

Example: least 2. After a match of five tokens that always went on alike the tree expects up to five: it drafts. After a
match of one token it
expects one at most: the draft model does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from specrig.decoding.drafters.draft_model import DraftModel
from specrig.decoding.drafters.suffix import Suffix
from specrig.decoding.types import Context, Draft, MethodOptions, Resources, Verdict

if TYPE_CHECKING:
    from torch import Tensor


class SuffixHybrid(Suffix):
    """k bounds what the tree drafts. The draft model runs what it has missed when it is asked again."""

    name = "suffix_hybrid"
    summary = "suffix decoding where the text repeats itself, else a draft model (hybrid SuffixDecoding 2411.04975)"
    needs = ("draft",)

    class Options(MethodOptions):
        """Those of suffix decoding's chains; least: the accepted tokens that the tree must expect to draft; draft_k:
        tokens of the draft model.
        """

        max_tree_depth: int = Field(24, ge=2, le=64)
        max_spec_factor: float = Field(1.0, gt=0, le=16)
        min_token_prob: float = Field(0.1, ge=0, le=1)
        least: float = Field(2.0, ge=0)
        draft_k: int = Field(2, ge=1, le=16)

    def __init__(self, options: MethodOptions, resources: Resources) -> None:
        super().__init__(options, resources)
        self.draft = DraftModel(DraftModel.Options(), resources)

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """Index the prompts, and prefill the draft model with them."""
        super().begin(context, hidden, aux_hidden_states)
        self.draft.begin(context, hidden, aux_hidden_states)
        self.draft_used = False

    def propose(self, context: Context, k: int) -> Draft:
        """From the tree or the draft model, row by row."""
        import torch

        from specrig.runtime.device import padded

        found = self.matches(context)
        copied = [tokens if score >= self.options.least else [] for score, tokens, _ in found]
        # How far the draft model is asked: not at all for rows that the tree continues, nor for finished ones.
        depths = [
            0 if row else min(depth, self.options.draft_k) for row, depth in zip(copied, context.depths, strict=True)
        ]
        lengths = [len(row) or depth for row, depth in zip(copied, depths, strict=True)]
        width = max(lengths)
        # -1 stands where the draft model's tokens go: one transfer to the device for both.
        known = [[-1] * width if depth else row for row, depth in zip(copied, depths, strict=True)]
        nodes = padded(known, width, context.sampler.device)
        self.draft_used = any(depths)
        if not self.draft_used:
            return Draft(nodes, lengths=lengths)
        others = [not depth for depth in depths]
        drafted = self.draft.propose(Context(context.tokens, others, context.sampler, depths), max(depths))
        m, own = drafted.tokens.shape[1], nodes < 0
        nodes = nodes.clamp(min=0)
        nodes[:, :m] = torch.where(own[:, :m], drafted.tokens, nodes[:, :m])
        if drafted.probs is None:
            return Draft(nodes, lengths=lengths)
        # What each token was drawn from, [B, n, V]: the draft model's q, and for the tree's tokens one-hot.
        q = torch.zeros((*nodes.shape, drafted.probs.shape[-1]), dtype=drafted.probs.dtype, device=nodes.device)
        q.scatter_(-1, nodes.unsqueeze(-1), 1.0)
        q[:, :m] = torch.where(own[:, :m].unsqueeze(-1), drafted.probs, q[:, :m])
        return Draft(nodes, probs=q, lengths=lengths)

    def observe(self, verdict: Verdict) -> None:
        """Roll the draft model back where it has drafted; rows that it was not asked for are behind anyway."""
        if self.draft_used:
            self.draft.observe(verdict)

    def passes(self) -> dict[int, tuple[int, float]]:
        """The draft model's bare forward passes."""
        return self.draft.passes()
