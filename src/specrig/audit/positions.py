"""Temperature above 0, on the study's own pair: is each sampled token a draw from the target's distribution at its place?

Probability integral transform: order the vocabulary by the target's probability given what was emitted before, let F be the
probability of all tokens ahead of the emitted one and p its own; then F + U p with U uniform is uniform on [0, 1) whatever the
distribution, and independent from place to place (Rosenblatt, 1952). A method that favours what its draft favours shifts these
values towards 0; pooled over all places, a G-test over equal bins sees it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

BINS = 20


def transform(probabilities: NDArray[np.float64], tokens: Sequence[int], rng: np.random.Generator) -> NDArray[np.float64]:
    """The uniform values of one output: probabilities `[n, V]`, tokens n. A token of probability 0 yields 1, the far end."""
    rows = np.arange(len(tokens))
    own = probabilities[rows, tokens]
    ahead = np.where(probabilities > own[:, None], probabilities, 0.0).sum(1)
    # Tokens of equal probability share their stretch of the line; which of them came first must not depend on their ids.
    ties = (probabilities == own[:, None]).sum(1)
    values = ahead + rng.random(len(tokens)) * own * ties
    return np.where(own > 0, np.minimum(values, 1 - 1e-12), 1.0)


def uniformity(values: NDArray[np.float64]) -> tuple[float, float]:
    """(p-value of a G-test over `BINS` equal bins, the share of values in the likeliest bin). A value of 1 is impossible: p = 0."""
    if len(values) == 0:
        return float("nan"), float("nan")
    if (values >= 1).any():
        return 0.0, float("nan")
    observed = np.bincount((values * BINS).astype(int), minlength=BINS)
    expected = len(values) / BINS
    present = observed > 0
    statistic = 2.0 * float((observed[present] * np.log(observed[present] / expected)).sum())
    return float(chi2.sf(statistic, BINS - 1)), float(observed[0] / len(values))
