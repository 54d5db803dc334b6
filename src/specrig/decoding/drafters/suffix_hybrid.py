"""Suffix decoding where the text repeats itself, a draft model where it does not.

Hybrid SuffixDecoding (Oliaro et al., 2411.04975): the suffix tree says how many tokens of its draft it expects to be
accepted, the sum of their probabilities. Where that is at least `least`, its draft is verified and the draft model is
not run; else the draft model drafts `draft_k` tokens. The choice depends on the text alone, before anything is drawn,
so the output stays the target's.

Example: least 2. After a match of five tokens that always went on alike the suffix tree expects up to five: it drafts.
After a match of one token it expects one at most: the draft model does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from specrig.decoding.drafters.draft_model import DraftModel
from specrig.decoding.drafters.suffix import Suffix
from specrig.decoding.types import (
    Context,
    Draft,
    Drafter,
    MethodOptions,
    OwnVocabulary,
    Resources,
    Verdict,
    chain_draft,
)
from specrig.decoding.vocabularies import drafter_of

if TYPE_CHECKING:
    from torch import Tensor


class HybridOptions(MethodOptions):
    """The suffix tree's, when it drafts, and how much is drafted elsewhere."""

    max_tree_depth: int = Field(24, ge=2, le=64)
    max_spec_factor: float = Field(1.0, gt=0, le=16)
    min_token_prob: float = Field(0.1, ge=0, le=1)
    least: float = Field(2.0, ge=0)
    draft_k: int = Field(2, ge=1, le=16)
    length: Literal["fixed", "auto"] = "fixed"


class SuffixHybrid(Suffix):
    """k bounds what the suffix tree drafts. The draft model runs what it has missed when it runs again."""

    name = "suffix_hybrid"
    summary = "suffix decoding where the text repeats itself, else a draft model (hybrid SuffixDecoding 2411.04975)"
    needs = ("draft",)

    class Options(HybridOptions, OwnVocabulary):
        """max_tree_depth, max_spec_factor, min_token_prob, length: as in `suffix`; least: the suffix tree drafts where it
        expects at least this many accepted tokens; draft_k: tokens that the draft model drafts elsewhere; vocabularies:
        how a draft of another vocabulary drafts.
        """

    drafter: ClassVar[type[Drafter]] = DraftModel
    """What drafts where the suffix tree does not."""

    def __init__(self, options: MethodOptions, resources: Resources) -> None:
        super().__init__(options, resources)
        self.draft = drafter_of(self.drafter, self.drafter_options(), resources)
        self.aux_layers = self.draft.aux_layers

    def drafter_options(self) -> MethodOptions:
        """The drafter's own."""
        return self.drafter.Options.model_validate({"vocabularies": self.options.vocabularies})

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """Index the prompts, and prefill the drafter with them."""
        # The drafter first: passes that are timed for `length: auto` may overwrite the prompts' states on a GPU.
        self.draft.begin(context, hidden, aux_hidden_states)
        super().begin(context, hidden, aux_hidden_states)
        self.draft_used = False

    @property
    def least(self) -> float:
        """The suffix tree drafts where it expects at least this many accepted tokens."""
        return float(self.options.least)

    def propose(self, context: Context, k: int) -> Draft:
        """From the suffix tree or the drafter, row by row."""
        import torch

        from specrig.runtime.device import padded

        found = self.matches(context)
        copied = [row.tokens if row.score >= self.least else [] for row in found]
        # How far the drafter goes: not at all in rows that the suffix tree continues, nor in finished ones.
        depths = [
            0 if row else min(depth, self.options.draft_k) for row, depth in zip(copied, context.depths, strict=True)
        ]
        copies = [len(row) for row in copied]
        if self.size is not None:
            self.size.lengths = copies  # in other rows nothing of the suffix tree is judged
        self.draft_used = any(depths)
        if not self.draft_used:
            return chain_draft(copied, context.sampler.device)
        drafted = self.draft.propose(self.drafter_context(context, depths), max(depths))
        offered = drafted.offered
        if drafted.parents is None:
            offered = [min(depth, own) for depth, own in zip(depths, offered, strict=True)]
        lengths = [count or own for count, own in zip(copies, offered, strict=True)]
        if not any(copies):
            return replace(drafted, lengths=lengths)
        width = max(lengths)
        # -1 stands where the drafter's tokens go: one transfer to the device for both.
        known = [[-1] * width if depth else row for row, depth in zip(copied, depths, strict=True)]
        nodes = padded(known, width, context.sampler.device)
        m, own = min(drafted.tokens.shape[1], width), nodes < 0
        nodes = nodes.clamp(min=0)
        nodes[:, :m] = torch.where(own[:, :m], drafted.tokens[:, :m], nodes[:, :m])
        parents: Tensor | None = None
        if drafted.parents is not None:
            parents = torch.arange(-1, width - 1, device=nodes.device).repeat(len(nodes), 1)  # a copy is a chain
            parents[:, :m] = torch.where(
                own[:, :m], torch.as_tensor(drafted.parents, device=nodes.device)[:, :m], parents[:, :m]
            )
        if drafted.probs is None:
            return Draft(nodes, parents, lengths=lengths, width=drafted.width)
        from specrig.decoding.sampling import to_full_vocabulary

        # What each token was drawn from, [B, n, V]: the drafter's q, and for the suffix tree's tokens one-hot. If the
        # drafter drafts a tree: what the children of the root and of each node were drawn from; for a chain the same.
        V, m = self.resources.target.vocab_size, min(drafted.probs.shape[1], width)
        q = torch.zeros((*nodes.shape, V), dtype=drafted.probs.dtype, device=nodes.device)
        q.scatter_(-1, nodes.unsqueeze(-1), 1.0)
        drawn = to_full_vocabulary(drafted.probs[:, :m], drafted.vocabulary, V)
        q[:, :m] = torch.where(own[:, :m].unsqueeze(-1), drawn, q[:, :m])
        return Draft(nodes, parents, probs=q, lengths=lengths, width=drafted.width)

    def drafter_context(self, context: Context, depths: list[int]) -> Context:
        """What the drafter works on, `depths[b]` tokens deep in row b. Rows that the suffix tree continues are over to
        it.
        """
        return Context(context.tokens, [not depth for depth in depths], context.sampler, depths)

    def observe(self, verdict: Verdict) -> None:
        """Roll the draft model back where it has drafted; in other rows it is behind anyway."""
        super().observe(verdict)
        if self.draft_used:
            self.draft.observe(verdict)

    def passes(self) -> dict[int, tuple[int, float]]:
        """The drafter's bare forward passes."""
        return self.draft.passes()
