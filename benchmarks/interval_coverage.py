"""Simulates how often the intervals of `specrig.analysis` contain the true value, compared with the percentile
bootstrap.

    python benchmarks/interval_coverage.py            # about a minute; --samples 4000 for a quick look

The first table draws prompts of one task or of four, whose mean is taken. "log ratio" is the mean of log speedups;
"ratio" is tokens per target pass, Σ tokens / Σ passes, where passes differ by prompt. The second table draws
replicates: the same prompts in several runs of each job, where a run changes all log speedups of its job, or of all
jobs, by a random amount.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from specrig.analysis.replicates import between_runs, over_tasks
from specrig.analysis.statistics import LEVEL, Estimate, average, mean, ratio, student

Array = NDArray[np.float64]
UNITS = (4, 6, 8, 16, 64)
SAMPLES = 20_000
RESAMPLES = 400
LENGTH = 3.0
"""Expected tokens per target pass."""


def lognormal(sigma: float) -> Callable[[np.random.Generator, tuple[int, ...]], Array]:
    """Return a function (random, shape) that draws skewed values of mean 0 and standard deviation 1 from a lognormal."""
    middle, spread = np.exp(sigma**2 / 2), np.sqrt(np.expm1(sigma**2) * np.exp(sigma**2))
    return lambda random, shape: (np.exp(sigma * random.standard_normal(shape)) - middle) / spread


SHAPES: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "skewed": lognormal(0.5),
    "heavy": lambda random, shape: random.standard_t(3, shape) / np.sqrt(3),
    "very skewed": lognormal(0.7),
}
"""Name -> function that draws values of mean 0. Their skewness is 0, 1.75, 0 (Student's t with 3 degrees of freedom)
and 2.9.
"""
Sample = tuple[Array, Array]
"""(numerators, denominators), each of shape [samples, units]; all denominators of a mean are 1."""


def draw(estimator: str, shape: str, units: int, samples: int, random: np.random.Generator) -> tuple[Sample, float]:
    """Draw the units of one task; returns them and the true value that their interval should contain."""
    scatter = SHAPES[shape](random, (samples, units))
    if estimator == "log ratio":
        return (0.3 + 0.13 * scatter, np.ones((samples, units))), 0.3
    passes = np.round(12 * np.exp(0.25 * random.standard_normal((samples, units)))) + 1
    return (LENGTH * (1 + 0.15 * scatter) * passes, passes), LENGTH


def now(tasks: list[Sample]) -> tuple[Array, Array]:
    """Lower and upper ends, each [samples], of the intervals of `specrig.analysis.statistics`."""
    low, high = average([ratio(*task) for task in tasks]).interval()
    return low, high


def students(tasks: list[Sample]) -> tuple[Array, Array]:
    """Ends of intervals by Student's t, after Welch for several tasks: those of `now` without the widening for
    skewness.
    """
    found = average([ratio(*task) for task in tasks])
    reach = student(found.freedom) * np.sqrt(found.variance)
    return found.value - reach, found.value + reach


def percentile_bootstrap(tasks: list[Sample], resamples: int = RESAMPLES) -> tuple[Array, Array]:
    """Ends of the intervals that were used before: percentiles of means over units redrawn within each task.

    All samples share one set of draws.
    """
    random = np.random.default_rng(0)
    found = []
    for above, below in tasks:
        units = above.shape[1]
        counts = random.multinomial(units, [1 / units] * units, size=resamples).T.astype(float)  # [units, resamples]
        found.append((above @ counts) / (below @ counts))
    low, high = np.quantile(np.mean(found, axis=0), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=1)
    return low, high


MOVED = {"cell": "each cell by itself", "job": "each job by itself", "run": "all jobs alike"}
METHODS = {"percentile bootstrap": percentile_bootstrap, "Student's t": students, "now": now}


def coverage(
    method: str, estimator: str, shape: str, units: int, tasks: int = 1, samples: int = SAMPLES, seed: int = 0
) -> float:
    """Share of samples whose interval contains the true value."""
    random = np.random.default_rng([seed, units, tasks, sorted(SHAPES).index(shape)])
    drawn = [draw(estimator, shape, units, samples, random) for _ in range(tasks)]
    low, high = METHODS[method]([task for task, _ in drawn])
    return float(np.mean((low <= drawn[0][1]) & (drawn[0][1] <= high)))


def replicated(
    replicates: int,
    effect: float,
    moves: str = "job",
    *,
    jobs: int = 6,
    prompts: int = 8,
    samples: int = 1000,
    seed: int = 0,
) -> tuple[float, float, float, float]:
    """Return four shares of intervals that contain the true value: two with the variation between runs, then two
    without it.

    Of each two, the first is for a cell and the second for the mean over a job's four tasks. effect: standard deviation
    of what a run adds to log speedups. moves: what gets such a number of its own, each "cell", each "job" or each
    "run".
    """
    random = np.random.default_rng([seed, replicates, round(1000 * effect), list(MOVED).index(moves), jobs])
    held = np.zeros(4)
    for _ in range(samples):
        moved = effect * random.standard_normal(
            {"cell": (jobs, 4), "job": (jobs, 1), "run": (1, 1)}[moves] + (1, replicates)
        )
        logs = 0.134 * random.standard_normal((jobs, 4, prompts, 1)) + 0.05 * random.standard_normal(
            (jobs, 4, prompts, replicates)
        )
        logs = logs + moved
        pools = (
            between_runs({str(number): list(job) for number, job in enumerate(logs)}),
            between_runs({str(number): [over_tasks(job)] for number, job in enumerate(logs)}),
        )
        tasks = [mean(task.mean(axis=1)) for task in logs[0]]
        of_cell, of_mean = (pool.of_mean(replicates) if pool else Estimate(0.0, 0.0, 1.0) for pool in pools)
        for place, estimate in enumerate((tasks[0] + of_cell, average(tasks) + of_mean, tasks[0], average(tasks))):
            low, high = estimate.interval()
            held[place] += low <= 0 <= high
    cell, whole, bare_cell, bare_whole = held / samples
    return float(cell), float(whole), float(bare_cell), float(bare_whole)


def main() -> None:
    """Print both tables in Markdown."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--samples", type=int, default=SAMPLES)
    samples = arguments.parse_args().samples
    print(
        f"| coverage in % ({samples} samples) | tasks | method | "
        + " | ".join(f"{units} prompts" for units in UNITS)
        + " |"
    )
    print("|---|---|---|" + "---|" * len(UNITS))
    for estimator in ("log ratio", "ratio"):
        for shape in SHAPES:
            for tasks in (1, 4):
                for method in METHODS:
                    cells = [100 * coverage(method, estimator, shape, units, tasks, samples) for units in UNITS]
                    print(
                        f"| {estimator}, {shape} | {tasks} | {method} | "
                        + " | ".join(f"{value:.1f}" for value in cells)
                        + " |"
                    )
    print("\n| replicates | a run moves | by (sd) | a cell | mean over tasks | without what runs add |")
    print("|---|---|---|---|---|---|")
    for replicates in (1, 2, 3):
        for moves, whom in MOVED.items():
            for effect in (0.0, 0.02, 0.05, 0.1) if moves == "job" else (0.05, 0.1):
                found = [
                    100 * value for value in replicated(replicates, effect, moves, samples=max(samples // 10, 100))
                ]
                bare = f"{found[2]:.0f}, {found[3]:.0f}"
                print(f"| {replicates} | {whom} | {effect:.0%} | {found[0]:.1f} | {found[1]:.1f} | {bare} |")


if __name__ == "__main__":
    main()
