"""DSpark: DFlash's block, drafted token behind token, of which only what is likely to be accepted is verified.

2607.05147. A bias of the token before (`heads.markov`) makes the block's tokens agree, and a confidence head says of
each the chance that the target accepts it. Worth it where drafts are long and often wrong at their end: a chain ends
before the token whose chance, with those of the tokens before it, falls below `confidence_threshold`. A token's chance
is known before it is drawn, so what is verified stays exact.
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Any

from pydantic import Field

from specrig.decoding.draft_size import cut
from specrig.decoding.drafters.dflash import DFlash
from specrig.decoding.drafters.p_eagle import OnePassOptions
from specrig.decoding.types import Context, Draft, MethodOptions, Resources
from specrig.runtime.types import DecodingError

if TYPE_CHECKING:
    from torch import Tensor


class DSpark(DFlash):
    """DFlash's rounds with a head that says how far its chain is worth verifying."""

    name = "dspark"
    summary = "DFlash's block with a bias of the token before, cut by a confidence head (DSpark, 2607.05147)"
    needs = ("dspark",)

    class Options(OnePassOptions):
        __doc__ = (
            f"{OnePassOptions.__doc__} confidence_threshold: a chain of fixed length ends before the token whose chance of "
            "being accepted, with all before it, is lower by the confidence head; 0: all k tokens are verified. With "
            "length: auto the confidences are the chances."
        )

        confidence_threshold: float = Field(0.2, ge=0, lt=1)

    def __init__(self, options: MethodOptions, resources: Resources) -> None:
        super().__init__(options, resources)
        cuts = self.options.confidence_threshold > 0 or self.options.length == "auto"
        if cuts and not self.options.nodes and self.head.confidence is None:
            raise DecodingError(
                "this DSpark head has no confidence head: use it with `confidence_threshold: 0` and `length: fixed`"
            )

    def load(self) -> Any:
        """The trained head."""
        from specrig.heads.dspark.module import load

        return load(self.resources.head("dspark"), self.resources.target)

    def shorten(self, draft: Draft, logits: Tensor, context: Context) -> Draft:
        """The chains up to where the confidence head says that they pay."""
        least = self.options.confidence_threshold
        if self.size is None and least == 0:
            return draft
        shares = self.head.confidences(context.tokens, draft.tokens).tolist()
        if self.size is not None:
            return cut(draft, self.size.fit_chains(shares, context.depths))
        counts = [sum(chance >= least for chance in accumulate(row, mul)) for row in shares]
        return cut(draft, [min(pair) for pair in zip(counts, context.depths, strict=True)])
