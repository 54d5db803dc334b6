"""EAGLE: a head of one decoder layer continues the target's features, the target's own LM head names the tokens.

Li et al., 2401.15077. A chain of k tokens; above temperature 0 each is sampled from the head's distribution, so exact
rejection sampling applies. After each target pass the true features of the accepted tokens replace the predicted ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from specrig.decoding.types import (
    ChainOptions,
    Context,
    Draft,
    Drafter,
    Family,
    MethodOptions,
    PaperRound,
    Resources,
    Verdict,
)

if TYPE_CHECKING:
    from torch import Tensor

    from specrig.heads.eagle.module import EagleHead


class Eagle(Drafter):
    """One pass of the head runs what was accepted and drafts the first token; each of k - 1 more passes drafts another."""

    name = "eagle"
    summary = "a one-layer head continues the target's features, k tokens in a chain (EAGLE, 2401.15077)"
    family: ClassVar[Family] = "heads"
    needs = ("eagle",)
    paper = PaperRound(width=26, passes=5, layers=1, squares=2, outputs=1)

    class Options(ChainOptions):
        """acceptance: exact or block."""

    def __init__(self, options: MethodOptions, resources: Resources) -> None:
        super().__init__(options, resources)
        self.head = self.load()

    def load(self) -> EagleHead:
        """The trained head."""
        from specrig.heads.eagle.module import load

        return load(self.resources.head("eagle"), self.resources.target)

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """Prefill the head with the prompts' features."""
        self.head.begin(context.tokens, hidden)

    def propose(self, context: Context, k: int) -> Draft:
        """Sample k tokens a row, each on the feature predicted for the one before."""
        return self.one_by_one(context, k)[0]

    def one_by_one(self, context: Context, k: int) -> tuple[Draft, list[Tensor], Tensor]:
        """A draft of k tokens a row, a pass of the head each; the logits `[B, Vd]` that each was drawn from, and the feature
        `[B, D]` that goes with the last one.
        """
        import torch

        logits, feature = self.head.advance(context.tokens, context.done)
        tokens: list[Tensor] = []
        probs: list[Tensor] = []
        each = [logits]
        for step in range(k):
            index, q = context.sampler.next(each[step], [depth > step for depth in context.depths])
            tokens.append(self.head.target_ids(index))
            if q is not None:
                probs.append(q)
            if step + 1 < k:
                logits, feature = self.head.step(tokens[step], feature)
                each.append(logits)
        draft = Draft(
            torch.stack(tokens, 1), probs=torch.stack(probs, 1) if probs else None, vocabulary=self.head.vocabulary
        )
        return draft, each, feature

    def observe(self, verdict: Verdict) -> None:
        """Keep the true features of what was accepted."""
        assert verdict.hidden is not None
        self.head.accept(verdict.hidden, verdict.paths)

    def passes(self) -> dict[int, tuple[int, float]]:
        """The head's bare forward passes."""
        return self.head.pass_totals()
