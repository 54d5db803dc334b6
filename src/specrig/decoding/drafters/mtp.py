"""MTP: a further layer of the target, which its checkpoint carries or which was trained for it, drafts a chain of k tokens.

DeepSeek-V3 (2412.19437, section 2.2). Rounds are EAGLE's: the layer runs what was accepted, on the target's states, and
then k - 1 times its own output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from specrig.decoding.drafters.eagle import Eagle
from specrig.decoding.types import ChainOptions, PaperRound
from specrig.heads.base import Foreign

if TYPE_CHECKING:
    from specrig.heads.mtp.module import MtpHead


class Mtp(Eagle):
    """EAGLE's rounds with another head."""

    name = "mtp"
    summary = "a further layer of the target drafts k tokens in a chain (multi-token prediction, 2412.19437)"
    needs = ("mtp",)
    paper = PaperRound(width=2, passes=1, layers=1, squares=2, outputs=1)
    foreign: ClassVar[Mapping[str, Foreign]] = {
        "vllm": Foreign("mtp", options={"acceptance": "exact"}, sampled=True, carried=True),
        "sglang": Foreign("EAGLE", options={"acceptance": "exact"}, carried=True),
        "transformers": Foreign("use_mtp", options={"acceptance": "exact"}, sampled=True, carried=True),
    }

    class Options(ChainOptions):
        """acceptance: exact or block."""

    def load(self) -> MtpHead:
        """The layer."""
        from specrig.heads.mtp.module import load

        return load(self.resources.head("mtp"), self.resources.target)
