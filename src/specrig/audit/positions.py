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
    """The tests of one or several samples. distances: of Kolmogorov and Smirnov; sizes: values of each sample; first:
    the share of all values in the likeliest twentieth.
    """

    distances: tuple[float, ...]
    sizes: tuple[int, ...]
    first: float

    @property
    def p_value(self) -> float:
        """The smallest probability that uniform values are as far off or farther, times the number of samples
        (Bonferroni): valid however these depend on each other. NaN without values.
        """
        if not self.sizes:
            return float("nan")
        smallest = min(float(kstwo.sf(distance, n)) for distance, n in zip(self.distances, self.sizes, strict=True))
        return min(1.0, smallest * len(self.sizes))

    def describe(self, level: float) -> str:
        """The finding in words, at a level of significance.

        A shift of d at some point of the line makes the share up to there normal around d, with a deviation of at most
        1 / (2 √n).
        """
        if not self.sizes:
            return "no tokens"
        tokens = f"{sum(self.sizes)} tokens"
        if self.p_value <= level:
            return f"{tokens}, not uniform"
        count, n = len(self.sizes), min(self.sizes)
        seen = min(1.0, float(kstwo.isf(level / count, n) + norm.ppf(SEEN) / (2 * n**0.5)))
        where = "" if count == 1 else f" in any of {count} samples"
        return (
            f"{tokens}, within chance of uniform; a shift of {seen:.2f}{where} would be seen in {100 * SEEN:.0f} % of "
            "such tests"
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


def uniformity(*samples: NDArray[np.float64]) -> Uniformity:
    """Kolmogorov-Smirnov tests that the values of each sample are uniform on [0, 1).

    Values may depend on those of other samples, not on those of their own. A value of 1 is impossible: the distance is
    then 1.
    """
    filled = [values for values in samples if len(values)]
    first = float((np.concatenate(filled) < 0.05).mean()) if filled else float("nan")
    return Uniformity(tuple(map(_distance, filled)), tuple(map(len, filled)), first)


def _distance(values: NDArray[np.float64]) -> float:
    n = len(values)
    line, steps = np.sort(values), np.arange(n + 1) / n
    return 1.0 if line[-1] >= 1 else float(max((steps[1:] - line).max(), (line - steps[:-1]).max()))
