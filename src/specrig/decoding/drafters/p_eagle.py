"""P-EAGLE: EAGLE-3's head drafts k tokens in one pass. Worth it where a chain's k passes cost more than they bring.

2602.01469. The head runs what was accepted and k - 1 masks, and names a token at each. No token knows the one drafted
before it: above temperature 0 each is sampled from a distribution of its own, so exact rejection sampling applies. A
head with a bias of the token before (`heads.markov`) knows that one token: its logits are then read one by one.
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
        """Sample k tokens a row: each for itself, or with a bias each behind the one before."""
        logits = self.head.draft(context.tokens, context.done, k)
        if self.head.markov is not None:
            draft, logits = self._in_turn(logits, context)
        else:
            slots, probs = context.sampler.candidates(logits, 1, context.depths)
            draft = Draft(self.head.target_ids(slots.squeeze(-1)), probs=probs, vocabulary=self.head.vocabulary)
        return draft if self.size is None else self.size.shorten(draft, logits, context.depths)

    def _in_turn(self, logits: Tensor, context: Context) -> tuple[Draft, Tensor]:
        """The draft of logits `[B, k, Vd]`, and the logits with the bias of what was drafted before."""
        import torch

        from specrig.heads.markov import biased

        if context.sampler.greedy and self.size is None:
            found = self.head.markov.greedy(logits, self.head.vocabulary)
            if found is not None:
                return Draft(self.head.target_ids(found), vocabulary=self.head.vocabulary), logits
        tokens: list[Tensor] = []  # [B, 1] each
        probs: list[Tensor] = []
        each = list(logits.split(1, 1))
        for slot in range(len(each)):
            if slot:
                each[slot] = biased(each[slot], self.head.markov, tokens[-1])
            slots, drawn_from = context.sampler.candidates(
                each[slot], 1, [int(depth > slot) for depth in context.depths]
            )
            tokens.append(self.head.target_ids(slots.squeeze(-1)))
            probs += [] if drawn_from is None else [drawn_from]
        draft = Draft(
            torch.cat(tokens, 1), probs=torch.cat(probs, 1) if probs else None, vocabulary=self.head.vocabulary
        )
        return draft, torch.cat(each, 1)

    def observe(self, verdict: Verdict) -> None:
        """Keep the true states of what was accepted."""
        super().observe(verdict)
        if self.size is not None:
            self.size.learn_chains(verdict)
