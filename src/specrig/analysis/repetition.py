"""How much an output repeats itself. A model that loops under greedy decoding flatters methods that copy, `ngram` first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

LOOPING = 0.3
"""Share of repeated 4-grams above which a report warns: human prose and code of this length stay well below."""


def repeated_ngrams(outputs: Iterable[Sequence[int]], n: int = 4) -> float:
    """Share of n-grams that occurred before in the same output: 1 - Σ distinct / Σ all. NaN if no output has n tokens."""
    total = distinct = 0
    for tokens in outputs:
        grams = _ngrams(tokens, n)
        total += len(grams)
        distinct += len(set(grams))
    return 1 - distinct / total if total else float("nan")


def distinct_ngrams(outputs: Iterable[Sequence[int]], n: int = 2) -> float:
    """distinct-n (Li et al. 1510.03055): different n-grams over all outputs / n-grams. NaN if no output has n tokens."""
    grams = [gram for tokens in outputs for gram in _ngrams(tokens, n)]
    return len(set(grams)) / len(grams) if grams else float("nan")


def _ngrams(tokens: Sequence[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
