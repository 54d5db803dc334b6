"""Suffix decoding where the text repeats itself, a P-EAGLE head where it does not.

`suffix_hybrid` with a head in place of the draft model: the head drafts in one pass, and it has nothing to catch up
with after rounds in which the suffix tree drafted, since it reads the target's states.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from specrig.decoding.drafters.p_eagle import PEagle
from specrig.decoding.drafters.suffix import Suffix
from specrig.decoding.drafters.suffix_hybrid import SuffixHybrid
from specrig.decoding.types import Context, MethodOptions, Verdict


class SuffixPEagle(SuffixHybrid):
    """k bounds what the suffix tree drafts. In rounds in which only the suffix tree drafts, the head is not run."""

    name = "suffix_p_eagle"
    summary = "suffix decoding where the text repeats itself, else a P-EAGLE head (2411.04975, 2602.01469)"
    family = "one pass"
    needs = ("p_eagle",)
    drafter = PEagle

    class Options(SuffixHybrid.Options):
        """Those of `suffix_hybrid`; draft_k: tokens of the head; length: of both, as theirs; draft_nodes: of the head's
        tree of draft_k levels, 0: a chain, auto: as many as pay here.
        """

        draft_k: int = Field(3, ge=1, le=16)
        draft_nodes: Annotated[int, Field(ge=0, le=128)] | Literal["auto"] = 0

    def drafter_options(self) -> MethodOptions:
        """The head verifies as much of its chain as pays where the suffix tree does."""
        own = {"nodes": self.options.draft_nodes} if self.options.draft_nodes else {"length": self.options.length}
        return PEagle.Options.model_validate(own)

    def drafter_context(self, context: Context, depths: list[int]) -> Context:
        """The head runs all rows that go on: in all of them the same rounds' states wait for it."""
        return Context(context.tokens, context.done, context.sampler, depths)

    def observe(self, verdict: Verdict) -> None:
        """Keep the target's states of the accepted tokens, of either drafter."""
        Suffix.observe(self, verdict)
        self.draft.observe(verdict)
