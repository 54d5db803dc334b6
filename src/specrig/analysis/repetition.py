"""Measure how much outputs repeat themselves: methods that copy (`ngram`) gain from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

LOOPING = 0.3
"""The report warns above this share of repeated 4-grams. Human prose and code of the same length stay well below it."""


def repeated_ngrams(outputs: Iterable[Sequence[int]], n: int = 4) -> float:
    """1 - Σ distinct / Σ all: the share of n-grams that occurred before in the same output. NaN without any."""
    total = distinct = 0
    for tokens in outputs:
        grams = _ngrams(tokens, n)
        total += len(grams)
        distinct += len(set(grams))
    return 1 - distinct / total if total else float("nan")


def distinct_ngrams(outputs: Iterable[Sequence[int]], n: int = 2) -> float:
    """distinct-n (Li et al. 1510.03055): different n-grams / all n-grams of all outputs. NaN without any."""
    grams = [gram for tokens in outputs for gram in _ngrams(tokens, n)]
    return len(set(grams)) / len(grams) if grams else float("nan")


def _ngrams(tokens: Sequence[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
