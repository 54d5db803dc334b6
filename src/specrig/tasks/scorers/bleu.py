"""BLEU of translations, which compares the first line of each output with its reference."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from specrig.tasks.scorers.base import Sacrebleu


class Bleu(Sacrebleu):
    """See `Sacrebleu`."""

    name = "bleu"
    summary = "corpus BLEU, 0 to 100, sacrebleu's defaults (Post 2018, arXiv 1804.08771)"

    @cached_property
    def metric(self) -> Any:
        """See `Sacrebleu`."""
        import sacrebleu

        return sacrebleu.BLEU()
