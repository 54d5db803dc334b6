"""Draft-model speculation: a smaller model drafts k tokens one after another.

Leviathan et al., 2211.17192; Chen et al., 2302.01318.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from specrig.decoding.types import ChainOptions, Context, Draft, Drafter, OwnVocabulary, Verdict
from specrig.heads.base import Foreign

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from specrig.runtime.model import CachedModel


class DraftModel(Drafter):
    """Keeps the draft model's cache one step behind the context and samples the chain from it."""

    name = "draft_model"
    summary = "a smaller model drafts k tokens (Leviathan 2211.17192, Chen 2302.01318)"
    family = "draft model"
    needs = ("draft",)
    translates = True
    foreign: ClassVar[Mapping[str, Foreign]] = {
        "llamacpp": Foreign("draft-simple", part="draft", options={"acceptance": "exact"}),
        "sglang": Foreign("STANDALONE", part="draft"),
        "transformers": Foreign("assisted generation", part="draft", options={"acceptance": "exact"}),
        "vllm": Foreign("draft_model", part="draft", options={"acceptance": "exact"}, sampled=True),
    }

    class Options(ChainOptions, OwnVocabulary):
        """acceptance: exact or block; vocabularies: how a draft of another vocabulary drafts."""

    model: CachedModel

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """Prefill the draft model with the prompts."""
        self.model = self.resources.model("draft")
        self.model.prefill_like(self.resources.target, context.tokens, context.done)

    def propose(self, context: Context, k: int) -> Draft:
        """Sample k tokens a row, each given the ones before."""
        import torch

        # The draft model first runs what the last round added, then one token a step: logits [B, V] each time.
        sampler = context.sampler
        logits = self.advance(context)
        self.base = [len(tokens) for tokens in context.tokens]
        tokens: list[torch.Tensor] = []
        probs: list[torch.Tensor | None] = []
        kept = [[] if done else [0] for done in context.done]
        for step in range(k):
            token, q = sampler.next(logits, [depth > step for depth in context.depths])
            tokens.append(token)
            probs.append(q)
            if step + 1 < k:  # the last token is never run here: the target's pass judges it
                logits = self.model.forward(token.unsqueeze(1))[0][:, -1]
                self.model.keep(kept)
        stacked = None if sampler.greedy else torch.stack([q for q in probs if q is not None], 1)
        return Draft(torch.stack(tokens, 1), probs=stacked)

    def advance(self, context: Context) -> Tensor:
        """Run what is new of every unfinished row; returns next-token logits `[B, V]`."""
        return self.model.catch_up(context.tokens, context.done)

    def observe(self, verdict: Verdict) -> None:
        """Roll the draft model's cache back to what was accepted."""
        self.model.cache.truncate([base + len(path) for base, path in zip(self.base, verdict.paths, strict=True)])

    def passes(self) -> dict[int, tuple[int, float]]:
        """The draft model's bare forward passes."""
        return self.model.pass_totals()
