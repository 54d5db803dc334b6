"""Distinct-2 of free writing, which has no reference: how little it repeats itself."""

from __future__ import annotations

from itertools import pairwise

from specrig.tasks.scorers.base import Mean, Output


class Distinct2(Mean):
    """Mean over outputs of different word pairs / word pairs."""

    name = "distinct_2"
    summary = "mean share of distinct word pairs in an output, 0 to 100 (Li et al. 2016, arXiv 1510.03055)"
    needs_reference = False

    def score(self, output: Output) -> float:
        """An output of fewer than two words scores 0."""
        pairs = list(pairwise(output.text.split()))
        return 100 * len(set(pairs)) / len(pairs) if pairs else 0.0
