"""Does a method sample from the target's distribution? Exact probabilities of the first n tokens against sampled counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.stats import chi2, ncx2

from specrig.decoding.model import CachedModel

MINIMUM_EXPECTED = 5.0
"""Outcomes expected less often than this are pooled: the G statistic is only then close to chi-squared."""


@dataclass(frozen=True, slots=True)
class GTest:
    """Likelihood-ratio test of counts against probabilities. `total_variation` is the plain distance, for people."""

    statistic: float
    degrees: int
    p_value: float
    total_variation: float
    samples: int


@torch.inference_mode()
def exact_distribution(
    target: CachedModel, prompt: Sequence[int], length: int, temperature: float
) -> dict[tuple[int, ...], float]:
    """Probability of every continuation of `length` tokens: V^length entries, so for small vocabularies.

    One batched pass over all V^(length-1) prefixes gives every conditional distribution; the product is exact up to float32.
    """
    V = target.vocab_size
    prefixes = list(product(range(V), repeat=length - 1))
    target.start(len(prefixes), len(prompt) + length)
    tokens = torch.tensor([[*prompt, *prefix] for prefix in prefixes], device=target.device)
    logits, _ = target.forward(tokens)
    conditional = torch.softmax(logits[:, len(prompt) - 1 :].double() / temperature, -1).cpu().numpy()  # [P, length, V]
    result = {}
    for row, prefix in enumerate(prefixes):
        before = float(np.prod([conditional[row, position, token] for position, token in enumerate(prefix)]))
        for token in range(V):
            result[(*prefix, token)] = before * float(conditional[row, length - 1, token])
    return result


def g_test(samples: Iterable[Sequence[int]], expected: dict[tuple[int, ...], float]) -> GTest:
    """G-test of sampled continuations against `expected` probabilities; rare outcomes are pooled into one."""
    counts = Counter(tuple(sample) for sample in samples)
    total = sum(counts.values())
    outcomes = sorted(expected, key=expected.__getitem__, reverse=True)
    probabilities = np.array([expected[outcome] for outcome in outcomes])
    observed = np.array([counts.get(outcome, 0) for outcome in outcomes], dtype=float)
    distance = 0.5 * float(np.abs(observed / total - probabilities).sum())
    large = probabilities * total >= MINIMUM_EXPECTED
    probabilities = np.append(probabilities[large], probabilities[~large].sum())
    observed = np.append(observed[large], observed[~large].sum())
    filled = probabilities * total > 1e-9
    present = filled & (observed > 0)
    statistic = 2.0 * float((observed[present] * np.log(observed[present] / (probabilities[present] * total))).sum())
    degrees = max(int(filled.sum()) - 1, 1)
    if observed[~filled].sum() > 0:  # something impossible was sampled
        statistic = float("inf")
    return GTest(statistic, degrees, float(chi2.sf(statistic, degrees)), distance, total)


POWER = 0.99
"""Chance that a test fails a sampler as wrong as `detectable` says."""


def detectable(samples: int, degrees: int, false_alarm: float, power: float = POWER) -> float:
    """Total variation from which on a G-test of this size fails a wrong sampler, but for a chance of 1 - power.

    With d the total variation, chi-squared divergence is at least 4 d² (Cauchy-Schwarz), so the statistic's noncentrality is at
    least 4 d² times the samples; approximate, as the chi-squared law itself is.
    """
    threshold = chi2.isf(false_alarm, degrees)
    noncentrality = brentq(lambda value: ncx2.sf(threshold, degrees, value) - power, 1e-9, 1e6)
    return min(1.0, 0.5 * float(np.sqrt(noncentrality / samples)))
