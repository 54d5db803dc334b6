"""Distinct-2 of free writing: how little a text repeats itself. It needs no reference."""

from __future__ import annotations

from itertools import pairwise

from specrig.tasks.scorers.base import Mean, Output


class Distinct2(Mean):
    """Mean over outputs of 100 × (number of different word pairs / number of word pairs)."""

    name = "distinct_2"
    summary = "mean share of distinct word pairs in an output, 0 to 100 (Li et al. 2016, arXiv 1510.03055)"
    needs_reference = False

    def score(self, output: Output) -> float:
        """Share of different word pairs in an output, 0 to 100; 0 for an output of fewer than two words."""
        pairs = list(pairwise(output.text.split()))
        return 100 * len(set(pairs)) / len(pairs) if pairs else 0.0
