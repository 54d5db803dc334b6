"""Temperature above 0, on the study's own pair: is each token a draw from the target's distribution there?

Probability integral transform: order the vocabulary by the target's probability given what was emitted before, let F be
the probability of all tokens ahead of the emitted one and p its own; then F + U p with U uniform is uniform on [0, 1)
whatever the distribution, and independent from place to place (Rosenblatt, 1952). A method that favours what its draft
favours shifts these values towards 0; a Kolmogorov-Smirnov test of the values of all positions sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kstwo, norm

SEEN = 0.8
"""`Uniformity.describe` names the shift that is seen with this probability."""


@dataclass(frozen=True, slots=True)
class Uniformity:
    """distance: of Kolmogorov and Smirnov. first: the share of values in the likeliest twentieth."""

    distance: float
    first: float
    values: int

    @property
    def p_value(self) -> float:
        """Probability that uniform values are as far off or farther; NaN without values."""
        return float(kstwo.sf(self.distance, self.values)) if self.values else float("nan")

    def describe(self, level: float) -> str:
        """The finding in words, at a level of significance.

        A shift of d at some point of the line makes the share up to there normal around d, with a deviation of at most
        1 / (2 √n).
        """
        if not self.values:
            return "no tokens"
        if self.p_value <= level:
            return f"{self.values} tokens, not uniform"
        seen = min(1.0, float(kstwo.isf(level, self.values) + norm.ppf(SEEN) / (2 * self.values**0.5)))
        return (
            f"{self.values} tokens, within chance of uniform; a shift of {seen:.2f} would be seen in {100 * SEEN:.0f} "
            "% of such tests"
        )


def transform(
    probabilities: NDArray[np.float64], tokens: Sequence[int], rng: np.random.Generator
) -> NDArray[np.float64]:
    """The uniform values of one output: probabilities `[n, V]`, tokens n. A token of probability 0 gives 1."""
    rows = np.arange(len(tokens))
    own = probabilities[rows, tokens]
    ahead = np.where(probabilities > own[:, None], probabilities, 0.0).sum(1)
    # Tokens of equal probability share their stretch of the line: their order must not depend on their ids.
    ties = (probabilities == own[:, None]).sum(1)
    values = ahead + rng.random(len(tokens)) * own * ties
    return np.where(own > 0, np.minimum(values, 1 - 1e-12), 1.0)


def uniformity(values: NDArray[np.float64]) -> Uniformity:
    """Kolmogorov-Smirnov test that values are uniform on [0, 1). A value of 1 is impossible: the distance is then 1."""
    n = len(values)
    if n == 0:
        return Uniformity(0.0, float("nan"), 0)
    line, steps = np.sort(values), np.arange(n + 1) / n
    distance = 1.0 if line[-1] >= 1 else float(max((steps[1:] - line).max(), (line - steps[:-1]).max()))
    return Uniformity(distance, float((values < 0.05).mean()), n)
