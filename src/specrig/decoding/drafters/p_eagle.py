"""P-EAGLE: EAGLE-3's head drafts k tokens in one pass. Worth it where a chain's k passes cost more than they bring.

2602.01469. The head runs what was accepted and k - 1 masks, and names a token at each. No token knows the one drafted
before it: above temperature 0 each is sampled from a distribution of its own, so exact rejection sampling applies.
"""

from __future__ import annotations

from typing import Any

from specrig.decoding.drafters.eagle3 import Eagle3
from specrig.decoding.types import ChainOptions, Context, Draft


class PEagle(Eagle3):
    """One pass of the head a round, whatever k is."""

    name = "p_eagle"
    summary = "EAGLE-3's head drafts k tokens in one pass, on masks (P-EAGLE, 2602.01469)"
    family = "one pass"
    needs = ("p_eagle",)
    head: Any

    class Options(ChainOptions):
        """Those of a chain."""

    def load(self) -> Any:
        """The trained head."""
        from specrig.heads.p_eagle.module import load

        return load(self.resources.head("p_eagle"), self.resources.target)

    def propose(self, context: Context, k: int) -> Draft:
        """Sample k tokens a row, each for itself."""
        logits = self.head.draft(context.tokens, context.done, k)
        slots, probs = context.sampler.candidates(logits, 1, context.depths)
        return Draft(self.head.target_ids(slots.squeeze(-1)), probs=probs, vocabulary=self.head.vocabulary)
