"""EAGLE-3: EAGLE's loop with a head that reads three layers of the target and is trained on its own output.

Li et al., 2503.01840. The head need not predict the target's features, so it keeps gaining from more training data. It
reads a low, a middle and a high layer instead of the last layer alone. It drafts a chain of k tokens or, with `nodes`,
EAGLE-2's tree, as in the paper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from specrig.decoding.drafters.eagle import Eagle
from specrig.decoding.drafters.eagle2 import Eagle2
from specrig.decoding.types import Context, Draft, MethodOptions, PaperRound, Resources, Verdict
from specrig.heads.eagle3 import parallel_only
from specrig.runtime.types import DecodingError

if TYPE_CHECKING:
    from torch import Tensor

    from specrig.heads.eagle3.module import Eagle3Head


class Eagle3(Eagle2):
    """EAGLE's rounds over the target's fused features."""

    name = "eagle3"
    summary = "a one-layer head on three of the target's layers, trained on its own output (EAGLE-3, 2503.01840)"
    needs = ("eagle3",)
    paper = PaperRound(width=61, passes=6, layers=1, squares=3, outputs=0.25)  # a draft vocabulary of 32,000
    head: Eagle3Head

    class Options(MethodOptions):
        """nodes: 0 drafts a chain, else the size of a tree grown as EAGLE-2's; top_k: nodes expanded a level, and their
        children.
        """

        nodes: int = Field(0, ge=0, le=128)
        top_k: int = Field(10, ge=1, le=16)

    def __init__(self, options: MethodOptions, resources: Resources) -> None:
        super().__init__(options, resources)
        self.aux_layers = self.head.target_layers
        if self.head_passes(2) > 1 and (why := parallel_only(self.head.config.to_dict())):
            raise DecodingError(why)

    def head_passes(self, k: int) -> int:
        """Passes of the head in a round that drafts k tokens or levels: all but the first read its own output."""
        return k

    def load(self) -> Eagle3Head:
        """The trained head."""
        from specrig.heads.eagle3.module import load

        return load(self.resources.head("eagle3"), self.resources.target)

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """Prefill the head with the prompts' fused features."""
        assert aux_hidden_states is not None
        self.head.begin(context.tokens, self.head.fuse(aux_hidden_states))

    def propose(self, context: Context, k: int) -> Draft:
        """A chain of k tokens or a tree of k levels."""
        return super().propose(context, k) if self.options.nodes else Eagle.propose(self, context, k)

    def observe(self, verdict: Verdict) -> None:
        """Keep the fused features of what was accepted."""
        assert verdict.aux_hidden_states is not None
        self.head.accept(self.head.fuse(verdict.aux_hidden_states), verdict.paths)
