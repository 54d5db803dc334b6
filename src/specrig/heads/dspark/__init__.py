"""DSpark (2607.05147): DFlash's block with a bias of the token before, and a head that says what is worth verifying."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from specrig.heads.base import Foreign, Sizes
from specrig.heads.dflash import ONE_PASS, WHOLE_CHAINS, DFlash

_UNCUT = WHOLE_CHAINS | {"confidence_threshold": 0.0}


class DSpark(DFlash):
    """How large a block DSpark's layers fill, and how they and its two small heads learn it."""

    name: ClassVar[str] = "dspark"
    title: ClassVar[str] = "DSpark"
    about: ClassVar[str] = "How the head of `dspark` is trained."
    foreign: ClassVar[Mapping[str, Foreign]] = {
        "vllm": Foreign("dspark", options=_UNCUT, sampled=True, on_gpus_alone=True),
        "sglang": Foreign("DSPARK", options=_UNCUT, keys=ONE_PASS | {"--speculative-dspark-block-size": "{k}"}),
        "llamacpp": Foreign("draft-dspark", options=_UNCUT, sampled=True),
    }

    k: int = Field(default=7, ge=1, le=31)
    """Tokens that it learns to draft in one pass: its blocks hold as many, the last token first."""
    markov_rank: int = Field(default=256, ge=1)
    """Rank of the bias by which a drafted token knows the one before it; the target's hidden width at most."""
    confidence_weight: float = Field(default=1.0, ge=0)
    """Weight of the confidence head's cross-entropy with the share of drafts that the target accepts (section 3.2.1)."""

    def weights(self, sizes: Sizes) -> float:
        """Of the layers, of both sides of the bias, and of its own LM head where it drafts some tokens only."""
        own_output = self.drafted(sizes) * sizes.hidden if self.drafted(sizes) < sizes.vocabulary else 0
        return super().weights(sizes) + own_output + self._rank(sizes) * (sizes.vocabulary + self.drafted(sizes))

    def active_parameters(self, sizes: Sizes) -> float:
        """DFlash's, and one side of the bias at each token that a block drafts; of the other a row is looked up."""
        return super().active_parameters(sizes) + self.copies * self._rank(sizes) * self.drafted(sizes)

    def _rank(self, sizes: Sizes) -> int:
        return min(self.markov_rank, sizes.hidden)
