"""ROUGE-L of summaries, which compares the first paragraph of each output with its reference."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from specrig.tasks.scorers.base import Mean, Output, first_paragraph


class RougeL(Mean):
    """Mean over outputs of 100 × the F-measure of the longest common subsequence of words."""

    name = "rouge_l"
    summary = "mean ROUGE-L F1, 0 to 100, stemmed, Google's rouge-score (Lin 2004)"
    library = "rouge_score"

    @cached_property
    def _metric(self) -> Any:
        from rouge_score.rouge_scorer import RougeScorer

        return RougeScorer(["rougeL"], use_stemmer=True)

    def score(self, output: Output) -> float:
        """See `Mean`."""
        return 100 * float(self._metric.score(output.reference, first_paragraph(output.text))["rougeL"].fmeasure)
