"""The baseline: the target alone, one token a pass. Every ratio is against this, run through the same loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from specrig.decoding.types import Context, Draft, Drafter, empty_draft
from specrig.heads.base import Foreign


class Autoregressive(Drafter):
    """Offers nothing, so each round is one plain decoding step."""

    name = "autoregressive"
    summary = "target alone, one token a step: the baseline of every ratio"
    family = "none"
    uses_k = False
    foreign: ClassVar[Mapping[str, Foreign]] = dict.fromkeys(
        ("llamacpp", "sglang", "transformers", "vllm"), Foreign("")
    )

    def propose(self, context: Context, k: int) -> Draft:
        """The empty draft."""
        return empty_draft(context)
