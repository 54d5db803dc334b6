"""Estimates and their 95 % intervals in closed form, without random numbers. They keep their coverage with 4 to 64
units; fewer than three units give none.

One kernel serves every interval. An `Estimate` holds a value, the variance of that value, the degrees of freedom of
this variance and the value's third cumulant. Two intervals are computed: Student's t, and Hall's transformation of t
(Hall 1992, "On the removal of skewness by transformation"), which removes the skewness that the units show. On each
side the longer of the two is used.

With few units the skewness is itself uncertain, so n units count n / (n + 6) of the skewness that they show: 6 / n is
the variance of the skewness in normal samples, and 1 is the variance that is assumed for data. A mean over strata
(tasks) adds variances and has the degrees of freedom of Welch and Satterthwaite. A ratio of sums is linearised, with
the variance HC2 and the degrees of freedom of Bell and McCaffrey (2002).

Coverage, simulated by `python benchmarks/interval_coverage.py` (docs/log/statistics.md, "Intervals"): 93 to 97 % with 4
to 64 units, for normal units, for units of Student's t with 3 degrees of freedom (97.6 % for a ratio of 4) and for
units as skewed as a lognormal of σ = 0.5 (skewness 1.75). Limit: for units with a skewness of 2.9 (a lognormal of σ =
0.7) coverage is 91 % with 4 to 6 units, 92 % with 8 and 94 % with 16. Counting the whole skewness would raise this to
93 %, but make the interval of 4 normal units 1.7 times as wide as Student's. Log speedups of prompts are far less
skewed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95
DIFFERENCE = 0.05
"""The relative difference that a study should be able to detect; it should do so with the chance `POWER`."""
POWER = 0.8
SKEWNESS_UNITS = 6
"""With this many units, half of the skewness that they show counts: it is the 6 in n / (n + 6)."""

Interval = tuple[float, float]
UNKNOWN: Interval = (float("nan"), float("nan"))
"""The interval of fewer than `LEAST_UNITS` units."""
LEAST_UNITS = 3
"""One unit says nothing about the spread over units, and of two Student's t says next to nothing ([0.09, 225])."""
Numbers = Any
"""A number, or an array whose last axis holds units and whose other axes are separate samples."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and what is known of its error. Arrays hold one estimate per sample. NaN means not known."""

    value: Numbers
    variance: Numbers
    freedom: Numbers
    """Degrees of freedom of `variance`."""
    third: Numbers = 0.0
    """Third cumulant of the value: its skewness times `variance` ** 1.5, shrunk as the module's docstring says."""
    units: Numbers = 0
    """How many units the value rests on; 0 where it rests on none of its own, as an error that is added to a value."""

    def interval(self, level: float = LEVEL) -> tuple[Numbers, Numbers]:
        """(low, high) at `level`; NaN for fewer than `LEAST_UNITS` units, and where a part of the estimate is not
        known.
        """
        few = (np.asarray(self.units) > 0) & (np.asarray(self.units) < LEAST_UNITS)
        error, reach = np.sqrt(self.variance), np.where(few, np.nan, student(self.freedom, level))
        with np.errstate(divide="ignore", invalid="ignore"):
            skewness = np.nan_to_num(self.third / error**3, posinf=0.0, neginf=0.0)
        above, below = (
            np.maximum(reach, -_untransformed(-reach, skewness)),
            np.maximum(reach, _untransformed(reach, skewness)),
        )
        return self.value - error * below, self.value + error * above

    def __add__(self, other: Estimate) -> Estimate:
        """The sum of two estimates whose errors are independent."""
        return _sum([self, other])

    def log(self) -> Estimate:
        """The estimate of the logarithm of this value, which must be positive, by linearisation."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return Estimate(
                np.log(self.value), self.variance / self.value**2, self.freedom, self.third / self.value**3, self.units
            )


def mean(values: ArrayLike) -> Estimate:
    """The mean of `values` [..., units] over the last axis. Its variance is NaN for fewer than two units."""
    return ratio(values, np.ones(np.shape(values)))


def ratio(numerators: ArrayLike, denominators: ArrayLike) -> Estimate:
    """Σ numerators / Σ denominators, both [..., units]: the mean of the units' ratios, weighted by their denominators.

    Units with a denominator of 0 do not count. The variance is NaN where fewer than two units count.
    """
    above, below = np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        total = below.sum(-1, keepdims=True)
        value = above.sum(-1, keepdims=True) / total
        weights = below / total
        influence = (above - value * below) / total
        return _linear(value[..., 0], influence / np.sqrt(1 - weights), weights)


def ratio_difference(first: tuple[ArrayLike, ArrayLike], second: tuple[ArrayLike, ArrayLike]) -> Estimate:
    """Σ numerators / Σ denominators of `first` minus that of `second`, each a pair (numerators, denominators) [...,
    units].

    Both are measured on the same units, so whatever moves both alike cancels. The third cumulant is 0: the estimate
    serves to compare two alike sides, and then differences scatter as far up as down.
    """
    values, influences, weights = [], [], []
    for numerators, denominators in (first, second):
        above, below = np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)
        total = below.sum(-1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            values.append(above.sum(-1, keepdims=True) / total)
            weights.append(below / total)
            influences.append((above - values[-1] * below) / total / np.sqrt(1 - weights[-1]))
    found = _linear((values[0] - values[1])[..., 0], influences[0] - influences[1], (weights[0] + weights[1]) / 2)
    return replace(found, third=0.0)


def jackknife(value: float, without: ArrayLike) -> Estimate:
    """Estimate any statistic of n units from its values `without` [n] each unit in turn."""
    left = np.asarray(without, dtype=float)
    units = left.size
    if units < 2:
        return Estimate(value, np.nan, np.nan)
    influence = (left.mean() - left) * (units - 1) / units
    weights = np.full(units, 1 / units)
    return _linear(value, influence / np.sqrt(1 - weights), weights)


def average(strata: Sequence[Estimate]) -> Estimate:
    """The mean of independent estimates, each with the same weight; not known (NaN) where one of them is not known."""
    if not strata:
        return Estimate(np.nan, np.nan, np.nan)
    found, count = _sum(strata), len(strata)
    return Estimate(found.value / count, found.variance / count**2, found.freedom, found.third / count**3, found.units)


def student(freedom: Numbers, level: float = LEVEL) -> Numbers:
    """The number of standard errors that an interval of Student's t at `level` reaches to either side."""
    from scipy.special import stdtrit

    return stdtrit(freedom, (1 + level) / 2)


def geometric_mean(ratios: ArrayLike) -> float:
    """exp(mean(log r)) of positive ratios r; NaN without any ratio."""
    values = np.asarray(ratios, dtype=float)
    return float(np.exp(np.log(values).mean())) if values.size else float("nan")


def interval(estimate: Estimate, level: float = LEVEL, scale: Callable[[Numbers], Numbers] = np.asarray) -> Interval:
    """(low, high) of one sample, as floats. scale: applied to both ends (np.exp for logarithms)."""
    low, high = estimate.interval(level)
    return float(scale(low)), float(scale(high))


def mean_interval(values: ArrayLike) -> Interval:
    """95 % interval of the mean of `values` [units]."""
    return interval(mean(values))


def stratified_ratio_interval(strata: Sequence[Sequence[tuple[float, float]]]) -> Interval:
    """95 % interval of the mean over strata of Σ numerators / Σ denominators. A stratum lists (numerator, denominator)
    per unit.

    NaN where a stratum has fewer than three units.
    """
    if not strata or not all(strata):
        return UNKNOWN
    return interval(average([ratio(*zip(*units, strict=True)) for units in strata]))


def ratio_interval(numerators: ArrayLike, denominators: ArrayLike) -> Interval:
    """95 % interval of Σ numerators / Σ denominators, both [units]; NaN where fewer than three units have a denominator."""
    return interval(ratio(numerators, denominators))


def ratio_difference_interval(
    first: tuple[ArrayLike, ArrayLike], second: tuple[ArrayLike, ArrayLike], *, level: float = LEVEL
) -> Interval:
    """Interval of `ratio_difference` at `level`. Every unit must have positive denominators."""
    return interval(ratio_difference(first, second), level)


def prompts_needed(logs: ArrayLike, difference: float = DIFFERENCE, power: float = POWER) -> float:
    """The number of prompts needed to tell a ratio of 1 + `difference` from 1, with chance `power` and 5 % false
    alarms.

    logs [units]: log ratios of prompts that were measured. Returns the smallest n of at least 2 with n ≥ ((t(0.975) +
    t(power)) · s / log(1 + difference))², where s is the standard deviation of `logs` and t the quantile of Student's t
    with n - 1 degrees of freedom, as in the intervals. NaN for fewer than two units.
    """
    from scipy.special import stdtrit

    values = np.asarray(logs, dtype=float)
    if values.size < 2:
        return float("nan")
    effect = float(values.std(ddof=1) / np.log1p(difference))

    def enough(count: int) -> bool:
        return count >= ((stdtrit(count - 1, (1 + LEVEL) / 2) + stdtrit(count - 1, power)) * effect) ** 2

    low, high = 1, 2
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1:  # enough(high), not enough(low)
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return float(high)


def _linear(value: Numbers, influence: NDArray[np.float64], weights: NDArray[np.float64]) -> Estimate:
    """The estimate of a value whose error is a weighted sum over units.

    influence [..., units]: how far each unit moved the value / sqrt(1 - its weight), so that the squares add up to the
    variance where units vary alike (HC2). weights [..., units]: sum to 1.
    """
    units = (weights > 0).sum(-1).astype(float)
    variance = np.where(units > 1, (influence**2).sum(-1), np.nan)
    # trace² / trace of the square of the matrix whose quadratic form `variance` is, for units that vary alike (Bell and
    # McCaffrey): units - 1 for equal weights, less the more unlike they are.
    with np.errstate(divide="ignore", invalid="ignore"):
        d = weights**2 / (1 - weights)
        s, dw, ww = d.sum(-1), (d * weights).sum(-1), (weights**2).sum(-1)
        trace = s - 2 * dw + s * ww
        square = (d**2).sum(-1) * (1 + 2 * ww) + 2 * dw**2 + (s * ww) ** 2 - 4 * s * dw * ww
        square = square - 4 * (d**2 * weights).sum(-1) + 2 * s * (d * weights**2).sum(-1)
        freedom = np.clip(trace**2 / square, 1.0, None)
        # The cumulant's own correction for few units, then what few units are believed.
        corrected = units**2 / ((units - 1) * (units - 2)) * ((influence * np.sqrt(1 - weights)) ** 3).sum(-1)
        third = np.where(units > 2, corrected * units / (units + SKEWNESS_UNITS), 0.0)
    return Estimate(value, variance, freedom, third, units)


def _sum(parts: Sequence[Estimate]) -> Estimate:
    """The sum of independent estimates, with the degrees of freedom of Welch and Satterthwaite."""
    variance = sum(part.variance for part in parts)
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = variance**2 / sum(part.variance**2 / part.freedom for part in parts)
    # Without any spread the degrees of freedom do not matter: the interval is its value.
    freedom = np.where(variance == 0, 1.0, np.maximum(freedom, 1.0))
    value, third, units = (sum(getattr(part, name) for part in parts) for name in ("value", "third", "units"))
    return Estimate(value, variance, freedom, third, units)


def _untransformed(bound: Numbers, skewness: Numbers) -> Numbers:
    """The t whose Hall transform t + γt²/3 + γ²t³/27 + γ/6 equals `bound`, where γ is the skewness of the estimate."""
    gamma = np.where(np.abs(skewness) < 1e-6, 1.0, skewness)
    return np.where(np.abs(skewness) < 1e-6, bound, 3 / gamma * (np.cbrt(1 + gamma * (bound - gamma / 6)) - 1))
