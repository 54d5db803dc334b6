"""Means and bootstrap intervals. Every interval in SpecRig is a seeded percentile bootstrap over prompts (or batch groups)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000
LEVEL = 0.95
DIFFERENCE = 0.05
"""The relative difference that a study should be able to tell, and with what chance."""
POWER = 0.8

Interval = tuple[float, float]
UNKNOWN: Interval = (float("nan"), float("nan"))
"""The interval of a single unit: one prompt says nothing about the spread over prompts."""


def geometric_mean(ratios: ArrayLike) -> float:
    """exp(mean(log r)) of positive ratios; NaN of none."""
    values = np.asarray(ratios, dtype=float)
    return float(np.exp(np.log(values).mean())) if values.size else float("nan")


def mean_interval(values: ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """95 % percentile bootstrap interval of the mean of `values` [units]; NaN for fewer than two units."""
    return stratified_mean_interval([values], seed=seed, resamples=resamples)


def stratified_mean_interval(strata: Sequence[ArrayLike], *, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """95 % interval of the mean over strata of each stratum's mean: units are redrawn within their own stratum.

    This is the interval of "the geometric mean over tasks" when each stratum holds one task's log speedups. NaN when a
    stratum has fewer than two units.
    """
    arrays = [np.asarray(values, dtype=float) for values in strata]
    if not arrays or min(values.size for values in arrays) < 2:
        return UNKNOWN
    random = np.random.default_rng(seed)
    means = [values[_draws(random, values.size, resamples)].mean(axis=1) for values in arrays]
    return _percentiles(np.mean(means, axis=0))


def stratified_ratio_interval(
    strata: Sequence[Sequence[tuple[float, float]]], *, seed: int = 0, resamples: int = RESAMPLES
) -> Interval:
    """95 % interval of the mean over strata of each one's Σ numerators / Σ denominators: (numerator, denominator) of each unit, units
    redrawn within their own stratum.

    NaN where a stratum has fewer than two units. Every unit has a positive denominator.
    """
    if not strata or min(map(len, strata)) < 2:
        return UNKNOWN
    random = np.random.default_rng(seed)
    sums = [np.asarray(units, dtype=float)[_draws(random, len(units), resamples)].sum(axis=1) for units in strata]
    return _percentiles(np.mean([each[:, 0] / each[:, 1] for each in sums], axis=0))


def ratio_interval(numerators: ArrayLike, denominators: ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """95 % interval of Σ numerators / Σ denominators, units [n] redrawn in pairs.

    NaN for fewer than two units, or where too many resamples have no denominator (n-gram drafting with one match in all).
    """
    above, below = np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)
    if above.size < 2 or below.sum() == 0:
        return UNKNOWN
    draws = _draws(np.random.default_rng(seed), above.size, resamples)
    totals = below[draws].sum(axis=1)
    kept = totals > 0
    # A resample without a single draft has no rate. A few such are dropped, many mean the interval is not known.
    if kept.mean() < LEVEL:
        return UNKNOWN
    return _percentiles(above[draws].sum(axis=1)[kept] / totals[kept])


def ratio_difference_interval(
    first: tuple[ArrayLike, ArrayLike],
    second: tuple[ArrayLike, ArrayLike],
    *,
    level: float = LEVEL,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """Interval of Σ a / Σ b of `first` minus that of `second`: (numerators, denominators) over the same units, redrawn together.

    Expanded percentiles (Hesterberg 2015, "What Teachers Should Know about the Bootstrap", section 3.3), since it is used to judge and
    plain percentiles of few units are too narrow to. NaN for fewer than two units. Every unit has positive denominators.
    """
    parts = [np.asarray(values, dtype=float) for side in (first, second) for values in side]
    if parts[0].size < 2:
        return UNKNOWN
    draws = _draws(np.random.default_rng(seed), parts[0].size, resamples)
    above, below, other_above, other_below = (values[draws].sum(axis=1) for values in parts)
    tail = _expanded((1 - level) / 2, parts[0].size)
    low, high = np.quantile(above / below - other_above / other_below, [tail, 1 - tail])
    return float(low), float(high)


def _expanded(tail: float, units: int) -> float:
    """The percentile that a Student interval of so few units would reach."""
    from scipy.stats import norm, t

    return float(norm.cdf(-np.sqrt(units / (units - 1)) * t.isf(tail, units - 1)))


def prompts_needed(logs: ArrayLike, difference: float = DIFFERENCE, power: float = POWER) -> float:
    """Prompts that tell a ratio of 1 + `difference` from 1 with chance `power` at 5 % false alarms, given log ratios of some prompts.

    n = ((z(0.975) + z(power)) · s / log(1 + difference))², s the standard deviation of `logs` [units], rounded up to at least 2:
    the paired z-test, which for a handful of prompts asks for one or two less than a t-test would. NaN for fewer than two units.
    """
    values = np.asarray(logs, dtype=float)
    if values.size < 2:
        return float("nan")
    normal = NormalDist()
    z = normal.inv_cdf((1 + LEVEL) / 2) + normal.inv_cdf(power)
    return max(2.0, float(np.ceil((z * values.std(ddof=1) / np.log1p(difference)) ** 2)))


def _draws(random: np.random.Generator, units: int, resamples: int) -> NDArray[np.int64]:
    return random.integers(0, units, size=(resamples, units))


def _percentiles(values: NDArray[np.float64]) -> Interval:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
