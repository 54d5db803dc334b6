"""P-EAGLE: EAGLE-3's head drafts k tokens in one pass. Worth it where a chain's k passes cost more than they bring.

2602.01469. The head runs what was accepted and k - 1 masks, and names a token at each. No token knows the one drafted
before it: above temperature 0 each is sampled from a distribution of its own, so exact rejection sampling applies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from specrig.decoding.draft_size import DraftSize
from specrig.decoding.drafters.eagle3 import Eagle3
from specrig.decoding.types import ChainOptions, Context, Draft, Verdict

if TYPE_CHECKING:
    from torch import Tensor


class PEagle(Eagle3):
    """One pass of the head a round, whatever k is."""

    name = "p_eagle"
    summary = "EAGLE-3's head drafts k tokens in one pass, on masks (P-EAGLE, 2602.01469)"
    family = "one pass"
    needs = ("p_eagle",)
    head: Any

    class Options(ChainOptions):
        """length: of the chain that is verified. fixed: k; auto: as far as a pass of that width pays here, k at most
        (`decoding.draft_size`).
        """

        length: Literal["fixed", "auto"] = "fixed"

    def load(self) -> Any:
        """The trained head."""
        from specrig.heads.p_eagle.module import load

        return load(self.resources.head("p_eagle"), self.resources.target)

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """Prefill the head with the prompts' states."""
        super().begin(context, hidden, aux_hidden_states)
        self.size = DraftSize(self.resources.pass_costs()) if self.options.length == "auto" else None

    def propose(self, context: Context, k: int) -> Draft:
        """Sample k tokens a row, each for itself."""
        logits = self.head.draft(context.tokens, context.done, k)
        slots, probs = context.sampler.candidates(logits, 1, context.depths)
        draft = Draft(self.head.target_ids(slots.squeeze(-1)), probs=probs, vocabulary=self.head.vocabulary)
        return draft if self.size is None else self.size.shorten(draft, logits, context.depths)

    def observe(self, verdict: Verdict) -> None:
        """Keep the true states of what was accepted."""
        super().observe(verdict)
        if self.size is not None:
            self.size.learn_chains(verdict)
