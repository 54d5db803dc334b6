"""Intervals hold the truth about as often as they claim: simulated with the code that makes them."""

from __future__ import annotations

import numpy as np
import pytest

from specrig.analysis.statistics import average, mean, moderated, ratio

SAMPLES = 1_000


@pytest.mark.parametrize(("shape", "prompts"), [("normal", 8), ("skewed", 5)])
def test_intervals_cover_what_they_claim(shape: str, prompts: int) -> None:
    """Four tasks whose prompts differ by other amounts, as logarithms of speedups and as ratios of sums."""
    random = np.random.default_rng(prompts)
    means, worst, rates = 0, np.zeros(4), 0
    for _ in range(SAMPLES):
        draws = random.standard_normal((4, prompts))
        if shape == "skewed":  # a lognormal of sigma .5, with mean 0
            draws = np.exp(0.5 * draws) - np.exp(0.125)
        spreads = np.array([[0.1], [0.15], [0.2], [0.3]])
        tasks = [mean(row) for row in 0.3 + spreads * draws]
        low, high = average(tasks).interval()
        means += low <= 0.3 <= high
        ends = [task.interval() for task in moderated(tasks)]
        worst += [low <= 0.3 <= high for low, high in ends]
        passes = np.round(20 * np.exp(0.25 * random.standard_normal((4, prompts)))) + 1
        low, high = average(
            [ratio((3 + row) * below, below) for row, below in zip(spreads * draws, passes, strict=True)]
        ).interval()
        rates += low <= 3 <= high
    least = 0.93 if shape == "normal" else 0.9  # what the docstring of `statistics` admits
    assert least <= means / SAMPLES <= 0.98 and least <= rates / SAMPLES <= 0.98
    assert min(worst / SAMPLES) >= 0.87 and worst.mean() / SAMPLES >= least


def test_the_moderated_variance_by_hand() -> None:
    """Variances of units 1 and 4, d = 2 and d0 = 2 of the other task: (2 · 2.5 + 2 s²) / 4, with 4 degrees of freedom."""
    even, odd = moderated([mean([-1.0, 0.0, 1.0]), mean([-2.0, 0.0, 2.0])])
    assert (even.variance, odd.variance) == pytest.approx((1.75 / 3, 3.25 / 3))
    assert (even.freedom, odd.freedom, even.units) == (4, 4, 3)
    low, high = odd.interval()
    assert high == pytest.approx(2.7764 * np.sqrt(3.25 / 3), rel=1e-4) and low == pytest.approx(-high)
    # Of many tasks no more than four degrees of freedom count.
    assert {task.freedom for task in moderated([mean([-1.0, 0.0, 1.0])] * 8)} == {2 + 4}


def test_a_task_alone_has_students_interval() -> None:
    (alone,) = moderated([mean([1, 2, 3, 4, 5])])
    assert alone.interval() == pytest.approx((3 - 2.7764 * np.sqrt(0.5), 3 + 2.7764 * np.sqrt(0.5)), rel=1e-4)
    two, five = moderated([mean([1.0, 2.0]), mean([1, 2, 3, 4, 5])])
    assert np.isnan(two.interval()).all() and not np.isnan(five.interval()).any(), "two prompts give no interval"
