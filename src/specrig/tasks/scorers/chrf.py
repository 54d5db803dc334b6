"""chrF of translations, which compares the first line of each output with its reference."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from specrig.tasks.scorers.base import Sacrebleu


class Chrf(Sacrebleu):
    """See `Sacrebleu`."""

    name = "chrf"
    summary = "corpus chrF2, 0 to 100, sacrebleu's defaults (Popović 2015)"

    @cached_property
    def metric(self) -> Any:
        """See `Sacrebleu`."""
        import sacrebleu

        return sacrebleu.CHRF()
