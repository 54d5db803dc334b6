"""Intervals hold the truth about as often as they claim: simulated with the code that makes them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from specrig.analysis.cross_fitting import cross_fit
from specrig.analysis.statistics import average, mean, mean_interval, moderated, ratio

SAMPLES = 1_500


@pytest.mark.parametrize("prompts", [5, 8])
@pytest.mark.parametrize("shape", ["normal", "skewed"])
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


def noise(random: np.random.Generator, prompts: int, ks: int = 7) -> dict[int, dict[str, pd.Series]]:
    """A grid of k's that are all alike: log speedup 0, prompts differ, and each measurement has its own noise."""
    own = 0.1 * random.standard_normal(prompts)
    return {k: {"code": pd.Series(own + 0.1 * random.standard_normal(prompts))} for k in range(2, 2 + ks)}


def test_the_best_of_alike_ks_is_flattered_and_cross_fitting_is_not() -> None:
    random = np.random.default_rng(0)
    naive, judged, held = [], [], 0
    for _ in range(400):
        grid = noise(random, 8)
        naive.append(max(logs["code"].mean() for logs in grid.values()))
        found = cross_fit(grid)
        assert found is not None and len(found.logs["code"]) == 8
        judged.append(found.logs["code"].mean())
        low, high = mean_interval(found.logs["code"])
        held += low <= 0 <= high
    error = np.std(judged) / np.sqrt(len(judged))
    assert np.exp(np.mean(judged)) == pytest.approx(1.0, abs=3 * error) and error < 0.005
    assert np.exp(np.mean(naive)) > 1.03
    assert 0.92 <= held / 400 <= 0.98


def test_each_half_is_judged_at_the_k_of_the_other() -> None:
    """Even prompts like k = 2, odd ones k = 4: each is judged at what it does not like."""
    even = np.arange(6) % 2 == 0
    grid = {2: {"code": pd.Series(np.where(even, 1.0, 0.0))}, 4: {"code": pd.Series(np.where(even, 0.0, 1.0))}}
    found = cross_fit(grid)
    assert found is not None and found.ks == (2, 4)
    assert sorted(found.logs["code"].index) == list(range(6)) and (found.logs["code"] == 0).all()
    assert cross_fit({2: grid[2]}) is None, "nothing to choose"
    assert cross_fit({k: {"code": logs["code"][:1]} for k, logs in grid.items()}) is None, "nobody to judge"


def test_a_half_chooses_among_the_ks_that_ran_every_task() -> None:
    prompts = pd.Series(np.zeros(4))
    grid = {
        2: {"code": prompts, "story": prompts},
        4: {"code": prompts + 0.1, "story": prompts + 0.1},
        8: {"code": prompts + 1},
    }
    found = cross_fit(grid)
    assert found is not None and found.ks == (4, 4) and set(found.logs) == {"code", "story"}
    colder = cross_fit(grid, {k: {task: -logs for task, logs in tasks.items()} for k, tasks in grid.items()})
    assert colder is not None and colder.ks == (4, 4) and mean(colder.logs["code"]).value == pytest.approx(-0.1)
