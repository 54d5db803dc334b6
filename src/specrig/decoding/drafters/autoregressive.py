"""The baseline: the target alone, one token a pass. Every ratio is against this, run through the same loop."""

from __future__ import annotations

from specrig.decoding.types import Context, Draft, Drafter


class Autoregressive(Drafter):
    """Offers nothing, so each round is one plain decoding step."""

    name = "autoregressive"
    summary = "target alone, one token a step: the baseline of every ratio"
    family = "none"
    uses_k = False

    def propose(self, context: Context, k: int) -> Draft:
        """The empty draft."""
        from specrig.decoding.loop import empty_draft

        return empty_draft(context)
