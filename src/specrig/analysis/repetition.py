"""Measure how much outputs repeat themselves. A model that loops under greedy decoding flatters methods that copy
(`ngram`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

LOOPING = 0.3
"""The report warns above this share of repeated 4-grams. Human prose and code of the same length stay well below it."""


def repeated_ngrams(outputs: Iterable[Sequence[int]], n: int = 4) -> float:
    """The share of n-grams that occurred before in the same output: 1 - Σ distinct / Σ all. NaN if no output has n
    tokens.
    """
    total = distinct = 0
    for tokens in outputs:
        grams = _ngrams(tokens, n)
        total += len(grams)
        distinct += len(set(grams))
    return 1 - distinct / total if total else float("nan")


def distinct_ngrams(outputs: Iterable[Sequence[int]], n: int = 2) -> float:
    """distinct-n (Li et al. 1510.03055): different n-grams of all outputs / all n-grams of them. NaN without any
    n-gram.
    """
    grams = [gram for tokens in outputs for gram in _ngrams(tokens, n)]
    return len(set(grams)) / len(grams) if grams else float("nan")


def _ngrams(tokens: Sequence[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
