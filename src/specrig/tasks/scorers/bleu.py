"""BLEU of translations: the first line of each output against its reference."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from specrig.tasks.scorers.base import Output, Scorer, first_line


class Bleu(Scorer):
    """The corpus score: sentences' counts are summed before they become a score, never their scores."""

    name = "bleu"
    summary = "corpus BLEU, 0 to 100, sacrebleu's defaults (Post 2018, arXiv 1804.08771)"
    library = "sacrebleu"

    @cached_property
    def _metric(self) -> Any:
        import sacrebleu

        return sacrebleu.BLEU()

    def statistics(self, output: Output) -> list[float]:
        """Counts of matching n-grams, as sacrebleu's own bootstrap sums them."""
        found: list[float] = self._metric._extract_corpus_statistics([first_line(output.text)], [[output.reference]])[0]
        return found

    def combine(self, totals: Sequence[float], count: int) -> float:
        """See `Scorer`."""
        return float(self._metric._compute_score_from_stats(list(totals)).score)
